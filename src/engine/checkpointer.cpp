// SPDX-License-Identifier: Apache-2.0
#include "thinwire/engine/checkpointer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "core/require.h"
#include "thinwire/core/error.h"
#include "thinwire/core/log.h"

namespace thinwire::engine {

namespace {

using Clock = std::chrono::steady_clock;

// Seconds between agreements. Rank 0 proposes a number of steps that takes
// about so long.
constexpr double kSecondsBetweenAgreements = 1;
constexpr std::int64_t kMostStepsBetweenAgreements = 100;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// The contribution of a rank to an agreement, in eight bytes.
struct Word {
  bool stop = false;
  bool is_time = false;    // Rank 0 decides.
  bool is_saving = false;  // The last save is not yet written.
  std::int64_t steps = 1;  // Steps to the next agreement, as rank 0 decides.

  [[nodiscard]] std::int64_t packed() const {
    return steps << 8 | (stop ? 1 : 0) | (is_time ? 2 : 0) |
           (is_saving ? 4 : 0);
  }
  static Word of(std::int64_t packed) {
    return {.stop = (packed & 1) != 0,
            .is_time = (packed & 2) != 0,
            .is_saving = (packed & 4) != 0,
            .steps = packed >> 8};
  }
};

// ---- signals

struct Watched {
  int users = 0;               // guarded by the mutex
  struct sigaction before {};  // saved before the handler is set
  std::atomic<bool> raised{false};
};
static_assert(std::atomic<bool>::is_always_lock_free);

std::mutex signals_mutex;
std::array<Watched, 65> all_signals;

Watched& watched(int signal) {
  return all_signals[static_cast<std::size_t>(signal)];
}

extern "C" void set_flag(int signal) {
  Watched& its = watched(signal);
  if (!its.raised.exchange(true)) return;
  const int saved = errno;
  sigaction(signal, &its.before, nullptr);
  raise(signal);  // takes effect when this handler returns
  errno = saved;
}

void watch(int signal) {
  Watched& its = watched(signal);
  if (its.users > 0) {
    ++its.users;
    return;
  }
  its.raised = false;
  struct sigaction action {};
  action.sa_handler = set_flag;
  action.sa_flags = SA_RESTART;
  if (sigaction(signal, nullptr, &its.before) != 0 ||
      sigaction(signal, &action, nullptr) != 0)
    throw Error(ErrorCode::kUnavailable,
                fmt::format("signals: {} cannot be caught: {}", signal,
                            std::strerror(errno)));
  its.users = 1;
}

void unwatch(int signal) noexcept {
  Watched& its = watched(signal);
  if (--its.users > 0) return;
  struct sigaction now {};
  // Restores the action only if the program has not changed it meanwhile.
  if (sigaction(signal, nullptr, &now) == 0 && now.sa_handler == set_flag)
    sigaction(signal, &its.before, nullptr);
}

}  // namespace

// While the object exists, signals set a flag of the process instead of taking
// their action. A second signal of the same kind takes its usual action.
// Several objects may exist at once, for example if ranks are threads.
class SignalFlag {
 public:
  explicit SignalFlag(const std::vector<int>& signals) : signals_(signals) {
    const std::lock_guard lock(signals_mutex);
    for (auto signal = signals_.begin(); signal != signals_.end(); ++signal) {
      try {
        watch(*signal);
      } catch (...) {
        std::for_each(signals_.begin(), signal, unwatch);
        throw;
      }
    }
  }
  ~SignalFlag() {
    const std::lock_guard lock(signals_mutex);
    std::for_each(signals_.begin(), signals_.end(), unwatch);
  }
  SignalFlag(const SignalFlag&) = delete;
  SignalFlag& operator=(const SignalFlag&) = delete;

  // Returns whether a signal has arrived since the oldest existing object was
  // made.
  [[nodiscard]] bool is_raised() const noexcept {
    return std::any_of(signals_.begin(), signals_.end(), [](int signal) {
      return watched(signal).raised.load();
    });
  }

 private:
  const std::vector<int> signals_;
};

namespace {

std::string size_text(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1000 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 1, kUnits[unit]);
}

}  // namespace

void CheckpointerOptions::validate() const {
  require(!root.empty(), "root", "the directory of the checkpoints", "''");
  require(every_steps >= 0, "every_steps", ">= 0", every_steps);
  require(every.count() >= 0, "every", ">= 0 ms", every.count());
  require(keep_last >= 0, "keep_last", ">= 0", keep_last);
  require(keep_every >= 0, "keep_every", ">= 0", keep_every);
  for (const int signal : signals)
    require(signal > 0 && signal <= SIGRTMAX && signal != SIGKILL &&
                signal != SIGSTOP,
            "signals", "numbers of signals that can be caught", signal);
}

CheckpointerOptions checkpointer_options(
    const config::CheckpointConfig& config) {
  CheckpointerOptions options{.root = config.root,
                              .every_steps = config.every_steps,
                              .every = config.every,
                              .keep_last = config.keep_last,
                              .keep_every = config.keep_every,
                              .asynchronous = config.asynchronous};
  options.validate();
  return options;
}

struct Checkpointer::Impl {
  // A save whose files may not be written yet.
  struct Pending {
    checkpoint::SaveReport report;
    std::int64_t boundaries = 0;
    double held = 0;
    Clock::time_point began;
    std::optional<Clock::time_point> ended{};
  };

  Impl(Engine& e, CheckpointerOptions o)
      : engine(e), options(std::move(o)), signals(options.signals) {}

  std::string after_step(const EngineReport& report, const MakeExtra& extra);
  void agree();
  void finish_pending();
  void complete(const Pending& save);
  void save_periodic(const MakeExtra& extra);
  void save_last(const MakeExtra& extra);
  Pending save(bool asynchronous, checkpoint::LocalSteps local_steps,
               const MakeExtra& extra);
  void failed(const Error& error);
  void say(LogLevel level, const std::string& text) const;

  Engine& engine;
  const CheckpointerOptions options;
  const SignalFlag signals;
  std::atomic<bool> stop_asked{false};
  bool stop_agreed = false;
  bool is_stopped = false;

  std::int64_t boundaries = 0;        // Steps so far, including skipped ones.
  std::int64_t saved_boundaries = 0;  // Steps at the begin of the newest
                                      // complete save.
  std::int64_t seen_steps = 0;        // Applied steps at the last check.
  bool is_due = false;
  Clock::time_point newest_save = Clock::now();
  std::optional<Pending> pending;
  std::string failure;  // Error since the last step.

  std::int64_t interval = 1;         // steps between two agreements
  std::int64_t until_agreement = 1;  // steps to the next one
  Clock::time_point newest_agreement = Clock::now();
  Totals totals;
};

void Checkpointer::Impl::say(LogLevel level, const std::string& text) const {
  if (engine.communicator().rank() == 0) log(level, text);
}

// Reports a failed save, after which training can continue. After a lost peer
// or a difference between ranks, rethrows the error, which ends training.
void Checkpointer::Impl::failed(const Error& error) {
  if (error.code() != ErrorCode::kUnavailable) throw;
  ++totals.failed;
  failure = error.what();
  say(LogLevel::kWarning,
      fmt::format("a checkpoint could not be saved, training continues: {}",
                  error.what()));
}

void Checkpointer::Impl::agree() {
  comm::Communicator& comm = engine.communicator();
  const Clock::time_point now = Clock::now();
  const double per_step =
      seconds_between(newest_agreement, now) / static_cast<double>(interval);
  const double wanted = kSecondsBetweenAgreements / std::max(per_step, 1e-9);
  const std::int64_t most = std::min(2 * interval, kMostStepsBetweenAgreements);
  Word own;
  own.stop = stop_asked || signals.is_raised();
  own.is_time = options.every.count() > 0 && now - newest_save >= options.every;
  own.is_saving = pending && engine.saver().is_saving();
  own.steps =
      wanted >= static_cast<double>(most)
          ? most
          : std::max<std::int64_t>(1, static_cast<std::int64_t>(wanted));

  const std::int64_t sent = own.packed();
  std::vector<std::int64_t> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::span(&sent, 1), all);
  bool all_saved = true;
  for (const std::int64_t packed : all) {
    const Word its = Word::of(packed);
    stop_agreed = stop_agreed || its.stop;
    all_saved = all_saved && !its.is_saving;
  }
  const Word first = Word::of(all.front());
  is_due = is_due || first.is_time;
  interval = until_agreement = first.steps;
  newest_agreement = now;
  if (pending && all_saved) finish_pending();
}

void Checkpointer::Impl::complete(const Pending& save) {
  ++totals.saves;
  totals.newest = save.report.path;
  saved_boundaries = save.boundaries;
  say(LogLevel::kInfo,
      fmt::format(
          "saved {}: {} in {:.2g} s, training held for {:.2g} s",
          save.report.path, size_text(save.report.bytes),
          seconds_between(save.began, save.ended.value_or(Clock::now())),
          save.held));
  if (options.keep_last == 0) return;
  try {
    engine.saver().retain(options.root, {.keep_last = options.keep_last,
                                         .keep_every = options.keep_every});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnavailable) throw;
    say(LogLevel::kWarning,
        fmt::format("old checkpoints could not be removed: {}", error.what()));
  }
}

void Checkpointer::Impl::finish_pending() {
  if (!pending) return;
  Pending save = *std::exchange(pending, std::nullopt);
  const Clock::time_point began = Clock::now();
  try {
    engine.saver().wait();
  } catch (const Error& error) {
    return failed(error);
  }
  const double waited = seconds_between(began, Clock::now());
  totals.held_seconds += waited;
  save.held += waited;
  complete(save);
}

Checkpointer::Impl::Pending Checkpointer::Impl::save(
    bool asynchronous, checkpoint::LocalSteps local_steps,
    const MakeExtra& extra) {
  Pending save{
      .report = {}, .boundaries = boundaries, .held = 0, .began = Clock::now()};
  checkpoint::SaveOptions how = options.save;
  how.asynchronous = asynchronous;
  // Training has already reached the next sync.
  how.local_steps = local_steps == checkpoint::LocalSteps::kNextSync
                        ? checkpoint::LocalSteps::kAsIs
                        : local_steps;
  save.report =
      engine.save(options.root, extra ? extra() : checkpoint::Extra{}, how);
  const Clock::time_point now = Clock::now();
  save.held = seconds_between(save.began, now);
  totals.held_seconds += save.held;
  if (!asynchronous) save.ended = now;
  return save;
}

void Checkpointer::Impl::save_periodic(const MakeExtra& extra) {
  finish_pending();
  newest_save = Clock::now();
  is_due = false;
  try {
    pending = save(options.asynchronous, options.local_steps, extra);
  } catch (const Error& error) {
    return failed(error);
  }
  if (!options.asynchronous) complete(*std::exchange(pending, std::nullopt));
}

void Checkpointer::Impl::save_last(const MakeExtra& extra) {
  finish_pending();
  if (boundaries == saved_boundaries) return;
  complete(save(false, checkpoint::LocalSteps::kAsIs, extra));
}

std::string Checkpointer::Impl::after_step(const EngineReport& report,
                                           const MakeExtra& extra) {
  failure.clear();
  if (!report.at_boundary || is_stopped) return {};
  if (boundaries++ == 0) seen_steps = report.steps - (report.applied ? 1 : 0);
  if (pending && !pending->ended && !engine.saver().is_saving())
    pending->ended = Clock::now();
  if (--until_agreement == 0) agree();
  if (stop_agreed) {
    save_last(extra);
    is_stopped = true;
    return failure;
  }
  const std::int64_t every = options.every_steps;
  if (every > 0 && report.steps / every > seen_steps / every) is_due = true;
  seen_steps = report.steps;
  const bool waits = options.local_steps == checkpoint::LocalSteps::kNextSync &&
                     report.phase == optim::Phase::kLocal;
  if (is_due && !waits) save_periodic(extra);
  return failure;
}

Checkpointer::Checkpointer(Engine& engine, CheckpointerOptions options) {
  options.validate();
  if (options.asynchronous) engine.saver().require_asynchronous();
  impl_ = std::make_unique<Impl>(engine, std::move(options));
}

Checkpointer::~Checkpointer() = default;

std::string Checkpointer::after_step(const EngineReport& report,
                                     const MakeExtra& extra) {
  return impl_->after_step(report, extra);
}

void Checkpointer::request_stop() noexcept { impl_->stop_asked = true; }

bool Checkpointer::stop_requested() const noexcept { return impl_->is_stopped; }

void Checkpointer::finish(const MakeExtra& extra) { impl_->save_last(extra); }

const Checkpointer::Totals& Checkpointer::totals() const noexcept {
  return impl_->totals;
}

}  // namespace thinwire::engine
