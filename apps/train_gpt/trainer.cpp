// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <iostream>
#include <optional>
#include <span>
#include <vector>

#include "apps/train_gpt/agreed_failure.h"
#include "apps/train_gpt/memory.h"
#include "apps/train_gpt/options/training_config.h"
#include "apps/train_gpt/signals.h"
#include "apps/train_gpt/trainer_impl.h"
#include "thinwire/checkpoint/inspect.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/checksum.h"
#include "thinwire/core/env.h"
#include "thinwire/core/error.h"
#include "thinwire/core/log.h"
#include "thinwire/core/memory.h"

namespace thinwire::train_gpt {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kValidations = 10;  // in one run, unless asked for
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
std::string agreement(const Options& options, std::uint64_t data_hash) {
  std::string text = fmt::format("data {:016x}\n", data_hash);
  for (const auto& [name, value] : settings_of(options)) {
    text += fmt::format("{} {}\n", name, value);
  }
  return text + describe(options.saving);
}

// Ranks that exchange are told by the exchange.
void require_not_stopped() {
  if (const char* reason = comm::interrupted())
    throw Error(ErrorCode::kCommFailure, reason);
}

}  // namespace

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
  data_ = TextData::load(options_.data, model_.context(),
                         static_cast<std::size_t>(options_.validate_bytes));
  data_hash_ = data_->hash();
  config_.validate(comm_.size());
  if (options_.saving.is_periodic() && options_.optimizer == "zero_one_adam" &&
      options_.semantics == config::Semantics::kDeepSpeed)
    throw Error(ErrorCode::kInvalidArgument,
                "--save-every must not be given with --semantics deepspeed "
                "--optimizer zero_one_adam: its ranks' parameters differ");
  if (!is_first()) return;
  for (const config::KeyNote& key : options_.file_keys)
    std::cerr << fmt::format("config: {}\n", config::describe(key));
  for (const std::string& flag : options_.idle_flags)
    log(LogLevel::kWarning,
        fmt::format("{} has no effect with {}", flag, options_.optimizer));
  writer_.emplace(options_.out, settings_of(options_), options_.data,
                  options_.has_file ? config_.to_json() : "");
  if (options_.saving.resume.empty()) writer_->begin();
}

// Whether resume() will find something, as far as rank 0 sees.
bool Trainer::goes_on() {
  const Saving& saving = options_.saving;
  if (saving.resume.empty()) return false;
  std::uint8_t found = saving.resume == kAutoResume ? 0 : 1;
  if (is_first() && found == 0 &&
      std::filesystem::is_directory(saving.files.root)) {
    try {
      const auto all = checkpoint::inspect(saving.files.root);
      found = std::ranges::any_of(all,
                                  [](const auto& one) { return one.complete; });
    } catch (const Error&) {  // there is none
    }
  }
  comm_.broadcast(View(&found, 1, DType::kUInt8), 0);
  return found != 0;
}

// False: another rank says why it is to end.
bool Trainer::begin() {
  comm::require_same(comm_, "settings and data of train_gpt",
                     agreement(options_, data_hash_));
  if (is_first()) model_.initialize(options_.seed);
  model_.train_with(comm_, goes_on() ? config_to_resume(options_) : config_);
  next_sequence_ = sequences_per_backward();
  const Saving& saving = options_.saving;
  if (!saving.resume.empty() && !resume()) return false;
  if (saving.resume.empty() && saving.is_periodic() && is_first())
    warn_of_other_runs();
  checkpointer_.emplace(model_.engine(),
                        engine::checkpointer_options(options_.saving.files));
  reset_memory_peak();
  if (is_first()) std::cerr << describe(memory_of_rank(memory_use().now));
  return true;
}

engine::EngineReport Trainer::step(std::int64_t step) {
  require_not_stopped();
  const Clock::time_point start = Clock::now();
  double loss = 0;
  engine::EngineReport report;
  for (std::int64_t micro = 0; micro < batch_.accumulation_steps; ++micro) {
    loss += model_.backward(data_->sequences_from(next_sequence_, shard_));
    next_sequence_ += sequences_per_backward();
    report = model_.step();
  }
  newest_step_ = step;
  const auto backwards = static_cast<std::size_t>(batch_.accumulation_steps);
  unshared_.push_back(
      {.step = step,
       .loss = loss / static_cast<double>(backwards),
       .lr = report.learning_rate,
       .phase = std::string(to_string(report.phase)),
       .loss_scale = report.loss_scale,
       .tokens =
           backwards * shard_.sequences * model_.context() * shard_.world_size,
       .bytes_sent = report.bytes_sent,
       .seconds = seconds_since(start),
       .memory_bytes = memory_use().peak(),
       .masked = report.masked,
       .heavy = report.heavy,
       .revived = report.revived,
       .time = std::chrono::duration<double>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count(),
       .grad_norm = report.grad_norm,
       .applied = report.applied,
       .wait_seconds = report.exchange_seconds,
       .update_seconds = report.seconds - report.exchange_seconds,
       .exchange_seconds = report.comm_busy_seconds,
       .bytes_between_hosts = report.bytes_between_hosts});
  return report;
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
  newest.wait_seconds += seconds_since(start);
  newest.phase = to_string(optim::Phase::kCompressed);
}

void Trainer::share_losses() {
  if (unshared_.empty()) return;  // on all ranks
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

// A run whose last save fails was trained nevertheless: it is summarized first.
Ending Trainer::run() {
  if (!begin()) return Ending::kFailedElsewhere;
  bool is_saved = true;
  std::exception_ptr unsaved;
  try {
    if (!take_steps()) return Ending::kFailedElsewhere;
    try {
      is_saved = save_last();
    } catch (const AgreedFailure&) {
      unsaved = std::current_exception();
    }
  } catch (const std::exception& error) {
    const std::string signal(signal_name(stop_signal()));
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
  if (newest_step_ < options_.steps) {
    if (is_first()) tell_saved();
    return Ending::kStopped;
  }
  summary_.memory = memory_of_rank(memory_use().at_peak);
  summary_.params_checksum = checksum_of_masters();
  if (is_first()) finish();
  if (unsaved) std::rethrow_exception(unsaved);
  return is_saved ? Ending::kDone : Ending::kFailedElsewhere;
}

bool Trainer::is_validated(std::int64_t step) const {
  const std::int64_t steps = options_.steps;
  const std::optional<std::int64_t> every = options_.validate_every;
  if (every) return step == steps || (*every > 0 && step % *every == 0);
  return step * kValidations / steps != (step - 1) * kValidations / steps;
}

void Trainer::validate_after(std::int64_t step) {
  const ValidationRow row{step, validate()};
  model_.engine().end_evaluation();
  if (writer_) writer_->add(row);
  progress_.validation(row);
}

checkpoint::Extra Trainer::extra() {
  share_losses();
  return extra_of(position(), is_first());
}

// False: the run could not be saved, and rank 0 tells why.
bool Trainer::save_last() {
  if (newest_step_ < options_.steps || !options_.saving.is_periodic())
    return true;
  return all_or_none(
      [&] { checkpointer_->finish([this] { return extra(); }); });
}

// The same of a save that a signal asked for.
bool Trainer::take_steps() {
  while (newest_step_ < options_.steps) {
    const std::int64_t step = newest_step_ + 1;
    const engine::EngineReport report = this->step(step);
    const bool validates = is_validated(step);
    if (validates) synchronize();
    StepRow newest = unshared_.back();
    if (validates || unshared_.size() == kLossesPerExchange) share_losses();
    if (validates) validate_after(step);
    newest.loss = newest_loss_;
    progress_.step(newest);
    if (save_signal() != 0) checkpointer_->request_stop();
    if (!all_or_none([&] {
          checkpointer_->after_step(report, [this] { return extra(); });
        }))
      return false;
    if (checkpointer_->stop_requested()) break;
  }
  return true;
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

Ending train(const Options& options, comm::Communicator& comm) {
  Trainer trainer(options, comm);
  if (!prepare_everywhere(comm, [&] { trainer.prepare(); }))
    return Ending::kFailedElsewhere;
  return trainer.run();
}

}  // namespace thinwire::train_gpt
