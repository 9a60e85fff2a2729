// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "checkpoint/commit/root.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/replicas.h"
#include "checkpoint/rows.h"
#include "checkpoint/save_plan.h"
#include "core/json_text.h"
#include "core/require.h"
#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/checksum.h"
#include "thinwire/core/log.h"
#include "thinwire/core/memory.h"

namespace thinwire::checkpoint {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void require_savable(const optim::State& state) {
  if (state.common.has_scalar("expert_groups") &&
      state.common.integer("expert_groups") > 0)
    refuse(
        "save: experts whose gradients or parameters travel in 4 or 8 bits "
        "cannot be saved: leave zero_bits_up and zero_bits_down out");
}

// Adds each rank's parameters, because in 0/1 Adam with deepspeed semantics
// they differ between ranks after the freeze.
void add_own_parameters(const Training& training, optim::State& state) {
  if (training.semantics != "deepspeed" || !state.common.has_scalar("frozen") ||
      state.common.integer("frozen") == 0)
    return;
  state.add_free(kOwnParameters, training.params);
  state.arrays.back().sharing = optim::Sharing::kOwn;
}

// Refuses names of files that the library writes itself.
void require_attachable(const std::vector<Attachment>& attachments) {
  for (const Attachment& one : attachments)
    require(!one.name.ends_with(".safetensors") &&
                !one.name.ends_with(".tmp") &&
                one.name != "model.safetensors.index.json",
            "attachments[].name",
            "no *.safetensors, no *.tmp and not model.safetensors.index.json",
            one.name);
}

// Returns an empty text if there are none.
std::string description_of(const std::vector<Attachment>& attachments) {
  std::string text;
  for (const Attachment& one : attachments)
    text += fmt::format("{} {:016x}\n", one.name, checksum(one.bytes));
  return text;
}

StateDict scalars_in(const JsonValue& of_rank, const char* member) {
  StateDict scalars;
  for (const JsonValue& scalar : of_rank.at(member))
    add_scalar(scalars, scalar, "what a rank sent", member);
  return scalars;
}

// Lowers the priority of this thread, so that training goes first.
void yield_to_others() {
  constexpr int kNice = 10;
  static_cast<void>(
      setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice));
}

}  // namespace

struct Saver::Impl {
  explicit Impl(comm::Communicator& c) : comm(c) {}
  ~Impl() {
    if (writer.joinable()) writer.join();
  }

  /// Returns a separate communicator for saves, or the run's if the transport
  /// has no groups.
  [[nodiscard]] comm::Communicator& own_comm() {
    if (!second) second = comm::second_group(comm);
    return *second ? **second : comm;
  }
  void require_asynchronous();
  [[nodiscard]] Root& root_at(const std::string& path,
                              const SaveOptions& options);
  [[nodiscard]] Root::Contents contents(const Training& training,
                                        const optim::State& state,
                                        const Extra& extra,
                                        const SaveOptions& options);
  void take_snapshot(Root::Contents& contents);
  void begin(Root& to, Root::Contents contents);
  void wait();

  comm::Communicator& comm;
  std::optional<std::unique_ptr<comm::Communicator>> second;
  std::string run;          // on rank 0; empty until it is known
  std::string loaded_from;  // name of the directory
  std::string path;         // of `root`
  bool durable = true;
  Storage storage = Storage::kShared;
  std::unique_ptr<Root> root;

  // ---- asynchronous saves
  std::vector<Buffer> snapshots;  // one per file, reused by the next save
  std::atomic<bool> is_writing = false;
  std::exception_ptr failure;
  std::thread writer;  // Last member, because it uses the members above
};

Root& Saver::Impl::root_at(const std::string& where,
                           const SaveOptions& options) {
  if (root && path == where && durable == options.durable &&
      storage == options.storage)
    return *root;
  root.reset();
  if (run.empty()) run = random_id();
  root = std::make_unique<Root>(
      posix_file_system(), own_comm(), where, run,
      Root::Options{.durable = options.durable, .storage = options.storage});
  path = where;
  durable = options.durable;
  storage = options.storage;
  return *root;
}

// Puts the scalars of all ranks into rank 0's manifest.
Root::Contents Saver::Impl::contents(const Training& training,
                                     const optim::State& state,
                                     const Extra& extra,
                                     const SaveOptions& options) {
  Root::Contents all;
  std::string text_of_own;
  const WholeModel whole = whole_model(own_comm(), training);
  everywhere(own_comm(), [&] {
    all = plan_save(training, whole, state, extra, options);
    text_of_own = compact_json(
        JsonValue{{"scalars", scalars_to_json(state.own)},
                  {"extra", scalars_to_json(extra.own)},
                  {"attachments", description_of(options.attachments)}});
  });
  const std::vector<std::string> texts = gather_texts(own_comm(), text_of_own);
  std::string attached;  // on rank 0
  for (std::size_t r = 0; r < texts.size(); ++r) {
    const JsonValue of_rank = read_json(texts[r]);
    const auto& its = of_rank.at("attachments").get_ref<const std::string&>();
    if (r == 0) attached = its;
    if (comm.rank() == 0 && !its.empty() && its != attached)
      log(LogLevel::kWarning,
          fmt::format("attachments must be the same on all ranks: those of "
                      "rank {} differ from rank 0's",
                      r));
    all.manifest.scalars_of_ranks.push_back(scalars_in(of_rank, "scalars"));
    all.manifest.extra_of_ranks.push_back(scalars_in(of_rank, "extra"));
  }
  return all;
}

void Saver::Impl::take_snapshot(Root::Contents& all) {
  const MemoryScope scope(MemoryKind::kOther);
  snapshots.resize(std::max(snapshots.size(), all.files.size()));
  for (std::size_t i = 0; i < all.files.size(); ++i)
    all.files[i] = snapshot_of(all.files[i], snapshots[i]);
}

// Writes `contents` on another thread. They are copies, so the caller may
// continue.
void Saver::Impl::begin(Root& to, Root::Contents contents) {
  is_writing = true;
  writer = std::thread([this, &to, all = std::move(contents)]() mutable {
    yield_to_others();
    try {
      static_cast<void>(to.write(std::move(all)));
    } catch (...) {
      failure = std::current_exception();
    }
    is_writing = false;
  });
}

// Collectives of the writing thread must not mix with those of the run.
void Saver::Impl::require_asynchronous() {
  require(&own_comm() != &comm, "asynchronous",
          fmt::format("false, because the transport '{}' has no groups",
                      comm.backend()),
          true);
}

void Saver::Impl::wait() {
  if (writer.joinable()) writer.join();
  if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
}

Saver::Saver(comm::Communicator& comm) : impl_(std::make_unique<Impl>(comm)) {}

Saver::~Saver() = default;

SaveReport Saver::save(const Training& training, const std::string& root,
                       const Extra& extra, const SaveOptions& options) {
  require(training.params.size() == training.layout.size(), "params",
          fmt::format("{} elements", training.layout.size()),
          training.params.size());
  require(training.step >= 0, "step", ">= 0", training.step);
  require_path("root", root);
  if (options.asynchronous) impl_->require_asynchronous();
  const Clock::time_point start = Clock::now();
  impl_->wait();
  SaveReport report;
  report.step = training.step;
  report.waited_seconds = seconds_since(start);
  if (options.local_steps == LocalSteps::kSynchronize)
    optim::synchronize(training.optimizer, training.params);
  optim::State state;
  everywhere(impl_->own_comm(), [&] {
    require_attachable(options.attachments);
    state = training.optimizer.state();
    require_savable(state);
    add_own_parameters(training, state);
  });
  require_same_replicas(impl_->own_comm(), training, state, extra, options);
  Root::Contents contents = impl_->contents(training, state, extra, options);
  contents.manifest.finite = are_usable(impl_->own_comm(), training, state);
  Root& to = impl_->root_at(root, options);
  if (options.asynchronous) {
    everywhere(impl_->own_comm(), [&] { impl_->take_snapshot(contents); });
    report.bytes = to.total_bytes(contents);
    report.path = fmt::format("{}/step-{:010}", root, training.step);
    impl_->begin(to, std::move(contents));
  } else {
    const Root::Committed done = to.write(std::move(contents));
    report.path = done.path;
    report.bytes = done.bytes;
  }
  report.seconds = seconds_since(start);
  return report;
}

void Saver::require_asynchronous() { impl_->require_asynchronous(); }

void Saver::wait() { impl_->wait(); }

bool Saver::is_saving() const { return impl_->is_writing; }

void Saver::release_buffers() {
  impl_->wait();
  impl_->snapshots.clear();
}

void Saver::set_loaded_from(const LoadReport& report) {
  impl_->root.reset();  // The next save makes a root for this run on all ranks.
  impl_->run = report.run;
  // A checkpoint that a crash left gets this name when it is adopted.
  impl_->loaded_from = fmt::format("step-{:010}", report.step);
}

void Saver::go_on_with_run_in(const std::string& root) {
  if (impl_->comm.rank() != 0) return;
  FileSystem& files = posix_file_system();
  try {
    if (!files.exists(root)) return;
    for (const FoundCheckpoint& found : find_checkpoints(files, root))
      if ((found.complete || is_in_parts(found.manifest)) && impl_->run.empty())
        impl_->run = found.manifest.run;
  } catch (const Error& error) {
    log(LogLevel::kDebug, error.what());  // save() will report it
  }
}

void Saver::retain(const std::string& root, const Retention& retention) {
  impl_->wait();
  if (impl_->root && impl_->path == root)
    impl_->root->retain(retention, impl_->loaded_from);
}

// The caller has no Saver that knows the run, so the run is read from the
// directory.
SaveReport save(const Training& training, const std::string& root,
                const Extra& extra, const SaveOptions& options) {
  auto saver = std::make_unique<Saver>(training.comm);
  try {
    saver->go_on_with_run_in(root);
    const SaveReport report = saver->save(training, root, extra, options);
    saver->wait();
    return report;
  } catch (const Error&) {
    // All ranks fail together, and training continues. Destroying the saver
    // during unwinding would make its communicator and the user's give up.
    saver.reset();
    throw;
  }
}

}  // namespace thinwire::checkpoint
