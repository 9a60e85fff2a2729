// SPDX-License-Identifier: Apache-2.0
#include "examples/train_gpt/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <iostream>
#include <span>

#include "examples/train_gpt/agreed_failure.h"
#include "examples/train_gpt/options/training_config.h"
#include "examples/train_gpt/signals.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/checksum.h"
#include "thinwire/core/env.h"
#include "thinwire/core/error.h"
#include "thinwire/core/memory.h"
#include "thinwire/engine/telemetry.h"

namespace thinwire::train_gpt {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kValidations = 10;  // default number in one run
// Losses stay with their ranks for this many steps, then travel together.
constexpr std::size_t kLossesPerExchange = 10;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Shard shard_of(const Options& options, const comm::Communicator& comm,
               std::int64_t sequences) {
  return {.seed = options.seed,
          .rank = static_cast<std::size_t>(comm.rank()),
          .world_size = static_cast<std::size_t>(comm.size()),
          .sequences = static_cast<std::size_t>(sequences)};
}

// Throws after a signal. Other ranks then fail in their exchange.
void require_not_stopped() {
  if (const char* reason = comm::interrupted())
    throw Error(ErrorCode::kCommFailure, reason);
}

}  // namespace

Trainer::Trainer(const Invocation& asked, comm::Communicator& comm)
    : options_(asked.options),
      saving_(asked.saving),
      comm_(comm),
      config_(training_config(options_)),
      settings_(settings_of(options_, config_)),
      batch_(batch_of(config_, comm.size())),
      shard_(shard_of(options_, comm, batch_.micro)),
      model_({.layers = options_.layers,
              .width = options_.width,
              .heads = options_.heads,
              .context = options_.context}),
      progress_(std::cerr,
                comm.rank() == 0 ? Progress::style_for_stderr(options_.quiet)
                                 : Progress::Style::kNone,
                std::string(config::name_of(config_.optimizer)), options_.steps,
                config_.steps_per_print) {}

std::string Trainer::config_text() const {
  return train_gpt::config_text(settings_, options_.data, config_.to_json());
}

void Trainer::prepare() {
  data_.emplace(options_.data, options_.context, options_.validate_bytes);
  data_hash_ = data_->hash();
  config_.validate(comm_.size());
  const std::string_view optimizer = config::name_of(config_.optimizer);
  if (saving_.is_periodic() && optimizer == "zero_one_adam" &&
      config_.semantics == config::Semantics::kDeepSpeed)
    throw Error(ErrorCode::kInvalidArgument,
                "--save-every must not be given with semantics=deepspeed and "
                "--optimizer zero_one_adam: its ranks' parameters differ");
  if (!is_first()) return;
  for (const config::KeyNote& key : options_.file_keys)
    std::cerr << fmt::format("config: {}\n", config::describe(key));
  writer_.emplace(options_.out);
  if (!options_.resume) writer_->begin(config_text());
}

// Returns false if another rank reports why the run must end.
bool Trainer::begin() {
  comm::require_same(
      comm_, "settings and data of train_gpt",
      fmt::format("data {:016x}\n{}resume {} {} {}\n", data_hash_,
                  train_gpt::config_text(settings_, {}, config_.to_json()),
                  options_.resume.value_or(""), options_.resume_fallback,
                  options_.resume_new_data));
  if (is_first()) model_.initialize(options_.seed);
  model_.train_with(comm_, will_resume()
                               ? training_config(options_, Start::kResumed)
                               : config_);
  next_sequence_ = sequences_per_backward();
  if (options_.resume && !resume()) return false;
  if (!options_.resume && saving_.is_periodic() && is_first())
    warn_of_other_runs();
  checkpointer_.emplace(model_.engine(),
                        engine::checkpointer_options(saving_.files));
  reset_memory_peak();
  if (is_first()) tell_memory();
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
  record(report, loss / static_cast<double>(batch_.accumulation_steps),
         seconds_since(start));
  return report;
}

void Trainer::record(const engine::EngineReport& report, double loss,
                     double seconds) {
  unshared_.push_back(
      {.step = newest_step_,
       .loss = loss,
       .phase = std::string(to_string(report.phase)),
       .tokens = static_cast<std::size_t>(batch_.accumulation_steps) *
                 shard_.sequences * model_.context() * shard_.world_size,
       .bytes_sent = report.bytes_sent,
       .seconds = seconds,
       .wait_seconds = report.exchange_seconds,
       .update_seconds = report.seconds - report.exchange_seconds,
       .more = is_first() ? telemetry_of(report) : Json()});
}

// Returns the engine's line of telemetry, with additions of train_gpt.
Json Trainer::telemetry_of(const engine::EngineReport& report) {
  const optim::Optimizer& optimizer = model_.engine().optimizer();
  engine::TelemetryExtra extra{.memory = memory_use(),
                               .lamb_coeffs = optimizer.progress().lamb_coeffs};
  const std::int64_t every = config_.telemetry.residual_every;
  if (every > 0 && report.steps % every == 0)
    if (const double ratio = optimizer.residual_ratio(); ratio > 0)
      extra.residual_ratio = ratio;
  Json line = Json::parse(engine::telemetry_line(report, extra));
  line["backward_seconds"] = report.backward_seconds;
  line["exchange_seconds"] = report.comm_busy_seconds;
  line["memory_bytes"] = extra.memory.peak();
  line["masked"] = report.masked;
  line["heavy"] = report.heavy;
  line["revived"] = report.revived;
  using Seconds = std::chrono::duration<double>;
  line["time"] =
      Seconds(std::chrono::system_clock::now().time_since_epoch()).count();
  return line;
}

// Makes parameters equal on all ranks. The newest step includes this exchange.
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
    for (std::size_t rank = 0; rank < shard_.world_size; ++rank)
      row.loss += all[rank * mine.size() + i];
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

bool Trainer::is_validated(std::int64_t step) const {
  const std::int64_t steps = options_.steps;
  if (const auto every = options_.validate_every)
    return step == steps || (*every > 0 && step % *every == 0);
  return step * kValidations / steps != (step - 1) * kValidations / steps;
}

// Returns false if a save that a signal requested has failed. Rank 0 reports
// the reason.
bool Trainer::take_steps() {
  while (newest_step_ < options_.steps) {
    const std::int64_t step = newest_step_ + 1;
    const engine::EngineReport report = this->step(step);
    const bool validates = is_validated(step);
    if (validates) synchronize();
    StepRow newest = unshared_.back();
    if (validates || unshared_.size() == kLossesPerExchange) share_losses();
    if (validates) {
      const ValidationRow row{step, validate()};
      model_.engine().end_evaluation();
      if (writer_) writer_->add(row);
      progress_.validation(row);
    }
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

// If the last save fails, the trained run is still summarized first.
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
    const std::string_view signal = signal_name(stop_signal());
    progress_.finish();
    if (signal.empty()) throw;
    if (options_.ranks && !is_first()) return Ending::kInterrupted;
    const std::int64_t step = is_first() ? stop(signal) : newest_step_;
    const std::string text =
        fmt::format("stopped by {} at step {} of {}; {} has what was recorded",
                    signal, step, options_.steps, options_.out);
    if (env::launched_ranks() > 1)
      throw std::runtime_error(fmt::format("{} ({})", text, error.what()));
    throw AgreedFailure(text);
  }
  progress_.finish();
  if (newest_step_ < options_.steps) {
    if (is_first()) tell_saved();
    return Ending::kStopped;
  }
  const std::string checksum = checksum_of_masters();
  if (is_first()) finish(checksum);
  if (unsaved) std::rethrow_exception(unsaved);
  return is_saved ? Ending::kDone : Ending::kFailedElsewhere;
}

// Returns the checksum of the masters, which may be sharded. Collective.
std::string Trainer::checksum_of_masters() {
  std::vector<float> all;
  for (const Parameter& p : model_.layout().parameters()) {
    const auto values = model_.engine().whole_values().parameter(p.name);
    all.insert(all.end(), values.begin(), values.end());
  }
  return fmt::format("{:016x}", thinwire::checksum(all));
}

Ending train(const Invocation& asked, comm::Communicator& comm) {
  Trainer trainer(asked, comm);
  if (!prepare_everywhere(comm, [&] { trainer.prepare(); }))
    return Ending::kFailedElsewhere;
  return trainer.run();
}

}  // namespace thinwire::train_gpt
