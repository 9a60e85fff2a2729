// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "apps/train_gpt/agreed_failure.h"
#include "apps/train_gpt/launch.h"
#include "apps/train_gpt/model.h"
#include "apps/train_gpt/options/training_config.h"
#include "apps/train_gpt/progress.h"
#include "apps/train_gpt/report/report.h"
#include "apps/train_gpt/report/run_record.h"
#include "apps/train_gpt/report/units.h"
#include "apps/train_gpt/text_data.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/checksum.h"
#include "thinwire/core/env.h"
#include "thinwire/core/error.h"
#include "thinwire/core/memory.h"

namespace thinwire::train_gpt {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kValidations = 10;  // in one run
// Losses stay with their ranks for so many steps, then travel together.
constexpr std::size_t kLossesPerExchange = 10;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

ModelShape shape_of(const Options& options) {
  return {.layers = static_cast<std::size_t>(options.layers),
          .width = static_cast<std::size_t>(options.width),
          .heads = static_cast<std::size_t>(options.heads),
          .context = static_cast<std::size_t>(options.context)};
}

Shard shard_of(const Options& options, const comm::Communicator& comm,
               std::int64_t sequences) {
  return {.seed = options.seed,
          .rank = static_cast<std::size_t>(comm.rank()),
          .world_size = static_cast<std::size_t>(comm.size()),
          .sequences = static_cast<std::size_t>(sequences)};
}

// Samples per backward and backwards per step; a file need not say both.
config::BatchSizes batch_of(const config::Config& config,
                            const Options& options, int world) {
  config::BatchSizes batch = config.batch(world);
  if (batch.micro == 0) batch.micro = options.batch;
  return batch;
}

// What all ranks must have in common.
std::string agreement(const Options& options, const TextData& data) {
  std::string text = fmt::format("data {:016x}\n", data.hash());
  for (const auto& [name, value] : settings_of(options)) {
    text += fmt::format("{} {}\n", name, value);
  }
  return text;
}

// Of the thread that this rank is.
MemoryOfRank memory_of_rank(const MemoryUse::Bytes& bytes) {
  const auto of = [&bytes](MemoryKind kind) {
    return bytes[static_cast<std::size_t>(kind)];
  };
  MemoryOfRank memory{.parameters = of(MemoryKind::kParameters),
                      .gradients = of(MemoryKind::kGradients),
                      .states = of(MemoryKind::kStates),
                      .buckets = of(MemoryKind::kBuckets),
                      .other = of(MemoryKind::kOther)};
  memory.peak = memory.parameters + memory.gradients + memory.states +
                memory.buckets + memory.other;
  return memory;
}

std::string describe(const MemoryOfRank& memory) {
  const auto size = [](std::uint64_t bytes) {
    return format_bytes(static_cast<double>(bytes));
  };
  return fmt::format(
      "memory per rank: {} (parameters {}, gradients {}, optimizer states {}, "
      "buckets {})\n",
      size(memory.peak), size(memory.parameters), size(memory.gradients),
      size(memory.states), size(memory.buckets));
}

// Ranks that exchange are told by the exchange.
void require_not_stopped() {
  if (const char* reason = comm::interrupted())
    throw Error(ErrorCode::kCommFailure, reason);
}

class Trainer {
 public:
  Trainer(const Options& options, comm::Communicator& comm);

  // Local; throws what stops the run before it begins.
  void prepare();
  void run();

 private:
  [[nodiscard]] bool is_first() const { return comm_.rank() == 0; }
  void begin();
  void step(std::int64_t step);
  void synchronize();
  void share_losses();
  [[nodiscard]] double validate();
  [[nodiscard]] std::string checksum_of_masters();
  void take_steps();
  void summarize();
  void finish();
  void stop(std::string_view signal);

  const Options& options_;
  comm::Communicator& comm_;
  const config::Config config_;
  const config::BatchSizes batch_;
  const Shard shard_;
  Model model_;
  std::optional<TextData> data_;
  std::optional<RunWriter> writer_;  // Of rank 0.
  Progress progress_;
  std::vector<StepRow> unshared_;  // Their losses are this rank's own.
  double newest_loss_ = 0;         // Mean over ranks.
  std::int64_t newest_step_ = 0;   // Taken on this rank.
  Summary summary_;
};

Trainer::Trainer(const Options& options, comm::Communicator& comm)
    : options_(options),
      comm_(comm),
      config_(training_config(options)),
      batch_(batch_of(config_, options, comm.size())),
      shard_(shard_of(options, comm, batch_.micro)),
      model_(shape_of(options)),
      progress_(std::cerr,
                comm.rank() == 0 ? Progress::style_for_stderr(options.quiet)
                                 : Progress::Style::kNone,
                options.optimizer, options.steps, config_.steps_per_print) {}

void Trainer::prepare() {
  data_ = TextData::load(options_.data, model_.context());
  config_.validate(comm_.size());
  if (!is_first()) return;
  for (const config::KeyNote& key : options_.file_keys)
    std::cerr << fmt::format("config: {}\n", config::describe(key));
  writer_.emplace(options_.out, settings_of(options_), options_.data,
                  options_.has_file ? config_.to_json() : "");
}

void Trainer::begin() {
  comm::require_same(comm_, "settings and data of train_gpt",
                     agreement(options_, *data_));
  if (is_first()) model_.initialize(options_.seed);
  model_.train_with(comm_, config_);
  reset_memory_peak();
  if (is_first()) std::cerr << describe(memory_of_rank(memory_use().now));
}

void Trainer::step(std::int64_t step) {
  require_not_stopped();
  const Clock::time_point start = Clock::now();
  double loss = 0;
  engine::EngineReport report;
  for (std::int64_t micro = 1; micro <= batch_.accumulation_steps; ++micro) {
    loss += model_.backward(data_->training_batch(
        shard_, (step - 1) * batch_.accumulation_steps + micro));
    report = model_.step();
  }
  newest_step_ = step;
  const auto backwards = static_cast<std::size_t>(batch_.accumulation_steps);
  unshared_.push_back({.step = step,
                       .loss = loss / static_cast<double>(backwards),
                       .lr = report.learning_rate,
                       .phase = std::string(to_string(report.phase)),
                       .loss_scale = report.loss_scale,
                       .tokens = backwards * shard_.sequences *
                                 model_.context() * shard_.world_size,
                       .bytes_sent = report.bytes_sent,
                       .seconds = seconds_since(start),
                       .memory_bytes = memory_use().peak(),
                       .masked = report.masked,
                       .heavy = report.heavy,
                       .revived = report.revived});
}

// Makes parameters equal on all ranks. Counted as part of the newest step,
// which then is none that exchanges nothing.
void Trainer::synchronize() {
  const Clock::time_point start = Clock::now();
  const std::uint64_t sent = comm_.counters().bytes_sent;
  model_.engine().begin_evaluation();
  const std::uint64_t bytes = comm_.counters().bytes_sent - sent;
  if (bytes == 0) return;
  StepRow& newest = unshared_.back();
  newest.bytes_sent += bytes;
  newest.seconds += seconds_since(start);
  newest.phase = to_string(optim::Phase::kCompressed);
}

void Trainer::share_losses() {
  std::vector<double> mine;
  for (const StepRow& row : unshared_) mine.push_back(row.loss);
  std::vector<double> all(mine.size() * shard_.world_size);
  comm_.all_gather(mine, all);
  for (std::size_t i = 0; i < unshared_.size(); ++i) {
    StepRow& row = unshared_[i];
    row.loss = 0;
    for (std::size_t rank = 0; rank < shard_.world_size; ++rank) {
      row.loss += all[rank * mine.size() + i];
    }
    row.loss /= static_cast<double>(shard_.world_size);
    newest_loss_ = row.loss;
    if (writer_) writer_->add(row);
  }
  unshared_.clear();
}

double Trainer::validate() {
  const std::size_t windows = data_->validation_windows();
  const Piece piece = piece_of(windows, shard_.rank, shard_.world_size);
  double sum = 0;
  for (std::size_t done = 0; done < piece.count; done += shard_.sequences) {
    require_not_stopped();
    const std::size_t count = std::min(shard_.sequences, piece.count - done);
    sum += model_.loss_sum(data_->validation_batch(piece.first + done, count));
  }
  std::vector<double> sums(shard_.world_size);
  comm_.all_gather(std::span(&sum, 1), sums);
  double total = 0;
  for (const double of_rank : sums) total += of_rank;
  return total / static_cast<double>(windows * model_.context());
}

void Trainer::run() {
  begin();
  try {
    take_steps();
  } catch (const std::exception& error) {
    const std::string signal(stop_signal_name());
    progress_.finish();
    if (signal.empty()) throw;
    if (is_first()) stop(signal);
    throw Stopped(fmt::format(
        "stopped by {} at step {} of {}; {} has what was recorded{}", signal,
        summary_.stopped_at.value_or(newest_step_), options_.steps,
        options_.out,
        env::launched_ranks() > 1 ? fmt::format(" ({})", error.what()) : ""));
  }
  progress_.finish();
  summary_.memory = memory_of_rank(memory_use().at_peak);
  summary_.params_checksum = checksum_of_masters();
  if (is_first()) finish();
}

void Trainer::take_steps() {
  for (std::int64_t step = 1; step <= options_.steps; ++step) {
    this->step(step);
    const bool is_tenth = step * kValidations / options_.steps !=
                          (step - 1) * kValidations / options_.steps;
    if (is_tenth) synchronize();
    StepRow newest = unshared_.back();
    if (is_tenth || unshared_.size() == kLossesPerExchange) share_losses();
    if (is_tenth) {
      const ValidationRow row{step, validate()};
      model_.engine().end_evaluation();
      if (writer_) writer_->add(row);
      progress_.validation(row);
    }
    newest.loss = newest_loss_;
    progress_.step(newest);
  }
}

// Collective: masters may be sharded.
std::string Trainer::checksum_of_masters() {
  std::vector<float> all;
  for (const Parameter& p : model_.layout().parameters()) {
    const auto values = model_.engine().full_parameter(p.name);
    all.insert(all.end(), values.begin(), values.end());
  }
  return fmt::format("{:016x}", checksum(all));
}

// Of rank 0, without communication.
void Trainer::summarize() {
  summary_.optimizer = options_.optimizer;
  summary_.semantics = std::string(to_string(options_.semantics));
  summary_.precision = std::string(precision_name(options_.precision));
  summary_.skipped_steps = model_.engine().optimizer().skipped_steps();
  summary_.ranks = comm_.size();
  summary_.steps = options_.steps;
  summary_.params = model_.params().size();
  summary_.zero = static_cast<int>(options_.zero);
  summary_.offload = options_.offload;
  summary_.add(writer_->so_far());
}

// What steps recorded before a signal ended them. The summary first: a launcher
// may kill soon.
void Trainer::stop(std::string_view signal) {
  if (comm_.size() == 1) share_losses();  // local
  summary_.memory = memory_of_rank(memory_use().at_peak);
  const auto& steps = writer_->so_far().steps;
  summary_.stopped_at = steps.empty() ? 0 : steps.back().step;
  summary_.stopped_by = signal;
  summarize();
  const std::vector<RunRecord> runs = {writer_->finish(summary_)};
  write_file(std::filesystem::path(options_.out) / "report.html",
             render_report(runs));
}

void Trainer::finish() {
  summarize();
  const std::vector<RunRecord> runs = {writer_->finish(summary_)};
  const auto report = std::filesystem::path(options_.out) / "report.html";
  write_file(report, render_report(runs));
  std::cout << render_table(runs);
  if (summary_.skipped_steps > 0) {
    std::cout << fmt::format(
        "{} of {} steps were skipped: a gradient was not finite\n",
        summary_.skipped_steps, options_.steps);
  }
  std::cout << "report: " << report.string() << '\n';
  if (!std::isfinite(summary_.final_val_loss)) {
    throw AgreedFailure(
        "the loss is not finite at the end: give a smaller --lr, or a --clip");
  }
}

}  // namespace

bool train(const Options& options, comm::Communicator& comm) {
  Trainer trainer(options, comm);
  if (!prepare_everywhere(comm, [&] { trainer.prepare(); })) return false;
  trainer.run();
  return true;
}

}  // namespace thinwire::train_gpt
