// SPDX-License-Identifier: Apache-2.0
#include "engine/run_notices.h"

#include <fmt/format.h>

#include <bit>
#include <utility>
#include <variant>

namespace thinwire::engine {

using optim::Phase;

namespace {

constexpr std::string_view kFreezeStep = "freeze_step";
constexpr char kNever[] = "never";
constexpr char kLowRank[] = "low_rank";
// Number of exact steps after which a notice says that nothing has been
// compressed.
constexpr std::int64_t kPatience = 1000;

}  // namespace

std::string_view freeze_key_of(const config::Config& config) {
  return std::visit(
      [](const auto& options) -> std::string_view {
        if constexpr (requires { options.freeze; }) return kFreezeStep;
        if constexpr (requires { options.var_freeze_step; })
          return "var_freeze_step";
        return "";
      },
      config.optimizer);
}

RunNotices::RunNotices(const config::Config& config, int rank, int ranks,
                       std::string own_gradients)
    : rank_(rank),
      ranks_(ranks),
      own_gradients_(std::move(own_gradients)),
      freeze_key_(freeze_key_of(config)),
      total_steps_(std::visit(
          [](const auto& options) -> std::optional<std::int64_t> {
            if constexpr (requires { options.freeze; })
              return options.freeze.total_steps;
            else if constexpr (requires { options.total_steps; })
              return options.total_steps;
            return std::nullopt;
          },
          config.optimizer)),
      average_(config.average),
      syncs_every_(config.outer.sync_every),
      state_{.ranks = ranks} {}

RunNotices::Notices RunNotices::at_start(
    std::optional<std::int64_t> freeze_step) {
  Notices notices;
  if (ranks_ == 1) return notices;
  const std::int64_t first = optim::first_steps_of(average_);
  if (average_.low_rank != 0 &&
      average_.total_steps.value_or(first + 1) <= first)
    add(notices, Kind::kMistake,
        fmt::format("first_steps is {}, and the run has total_steps={}: no "
                    "step will be of low rank, and all average in {} bits. "
                    "Set fewer first_steps",
                    first, *average_.total_steps, average_.first_bits));
  if (!freeze_step || !total_steps_ || *freeze_step < *total_steps_)
    return notices;
  state_.announced.insert(kNever);
  add(notices, Kind::kMistake,
      fmt::format("{0} is {1}, and the run has total_steps={2}: {3}. Omit {0}, "
                  "which then follows from total_steps, or set a smaller one",
                  freeze_key_, *freeze_step, *total_steps_,
                  freeze_key_ == kFreezeStep ? "nothing will be compressed"
                                             : "there will be no local steps"));
  return notices;
}

RunNotices::Notices RunNotices::after_step(const optim::StepReport& report,
                                           const Now& now) {
  Notices notices;
  const std::uint64_t before = among_ranks(state_.of_exact_step);
  count(report);
  if (ranks_ > 1) tell_how_ranks_average(notices, report, now, before);
  if (report.gradients_equal && !std::exchange(told_equal_gradients_, true))
    add(notices, Kind::kMistake,
        "all ranks had the same gradients. " + own_gradients_);
  if (!report.applied)
    for (Notice& notice : skipped(report, now))
      notices.push_back(std::move(notice));
  return notices;
}

void RunNotices::count(const optim::StepReport& report) {
  // A single rank sends nothing, and keeps the step that several ranks measured
  // for a later resume.
  if (report.phase == Phase::kExact && report.low_rank == 0 && report.applied &&
      ranks_ > 1) {
    state_.ranks = ranks_;
    state_.of_exact_step = report.bytes_sent;
    const int bits = report.bits == 0 ? 32 : report.bits;
    state_.exactly = report.bytes_sent * static_cast<std::uint64_t>(32 / bits);
  }
  state_.sent += report.bytes_sent;
  const std::uint64_t exactly = among_ranks(state_.exactly);
  state_.if_exact += exactly == 0 ? report.bytes_sent : exactly;
}

// Each of W ranks sends (W - 1) / W of the bytes of an exact step.
std::uint64_t RunNotices::among_ranks(std::uint64_t sent) const noexcept {
  const auto now = static_cast<std::uint64_t>(ranks_);
  const auto then = static_cast<std::uint64_t>(state_.ranks);
  return now == then ? sent : sent * (now - 1) * then / (now * (then - 1));
}

void RunNotices::tell_how_ranks_average(Notices& notices,
                                        const optim::StepReport& report,
                                        const Now& now, std::uint64_t before) {
  const std::string instead =
      before == 0 ? ""
                  : fmt::format("; a step sent {} bytes before, this one {}",
                                before, report.bytes_sent);
  std::set<std::string>& announced = state_.announced;
  if (report.low_rank != 0 && announced.insert(kLowRank).second)
    add(notices, Kind::kNews,
        fmt::format("step {}: from now on gradients travel as factors of low "
                    "rank {}{}",
                    now.steps, report.low_rank, instead));
  const std::string phase(to_string(report.phase));
  if (report.phase != Phase::kExact && !announced.contains(phase)) {
    announced.insert({phase, kNever});
    if (syncs_every_ > 0) announced.insert({"compressed", "local"});
    add(notices, Kind::kNews,
        fmt::format("step {}: from now on ranks exchange {}{}", now.steps,
                    what_travels(report.phase), instead));
  } else if (now.freeze_step && now.steps >= kPatience &&
             announced.insert(kNever).second) {
    const std::string when =
        *now.freeze_step == optim::kAutoFreeze
            ? "when the variance has settled, at step 100000 at the latest"
            : fmt::format("after step {}", *now.freeze_step);
    add(notices, Kind::kMistake,
        fmt::format("{} steps were exact, so no bytes were saved: compression "
                    "begins {}. Give total_steps, and it begins after a fifth "
                    "of the run",
                    now.steps, when));
  }
}

std::string RunNotices::what_travels(Phase phase) const {
  if (syncs_every_ > 0)
    return fmt::format("what up to {} local steps have changed", syncs_every_);
  return phase == Phase::kLocal
             ? "nothing in most steps, and one bit per element in some"
             : "momentum in one bit per element";
}

RunNotices::Notices RunNotices::skipped(const optim::StepReport& report,
                                        const Now& now) const {
  Notices notices;
  if (!std::has_single_bit(static_cast<std::uint64_t>(now.skipped)))
    return notices;
  const std::string where =
      report.nonfinite_rank < 0
          ? ""
          : fmt::format(" on rank {}", report.nonfinite_rank);
  std::string scales;
  if (report.loss_scale != 1) {
    scales = fmt::format("; the loss scale was {:g}", report.loss_scale);
    if (now.loss_scale)
      scales += fmt::format(" and is {:g} now", *now.loss_scale);
  }
  add(notices, Kind::kInfo,
      fmt::format("the step after {} was skipped on all ranks, {} so far: a "
                  "gradient was not finite{}{}",
                  now.steps, now.skipped, where, scales));
  return notices;
}

void RunNotices::continue_in(Phase phase) {
  if (phase == Phase::kExact) return;
  state_.announced.insert({"compressed", "local", kLowRank, kNever});
}

RunTotals RunNotices::totals() const noexcept {
  return {.bytes_sent = state_.sent,
          .bytes_saved = static_cast<std::int64_t>(state_.if_exact) -
                         static_cast<std::int64_t>(state_.sent)};
}

void RunNotices::restore(State state) {
  state.announced.merge(state_.announced);
  if (state.ranks < 2) {  // No step with traffic was measured.
    state.ranks = ranks_;
    state.of_exact_step = state.exactly = 0;
  }
  state_ = std::move(state);
}

void RunNotices::add(Notices& notices, Kind kind, std::string text) const {
  if (rank_ == 0) notices.push_back({kind, std::move(text)});
}

}  // namespace thinwire::engine
