// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <iostream>
#include <numeric>

#include "examples/train_gpt/agreed_failure.h"
#include "examples/train_gpt/signals.h"
#include "examples/train_gpt/trainer.h"
#include "examples/train_gpt/units.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/memory.h"

namespace thinwire::train_gpt {
namespace {

// Returns the bytes that this rank's thread has allocated, by their purpose.
// Torch's activations are not included.
Json memory_of_rank(const MemoryUse::Bytes& bytes) {
  const auto of = [&bytes](MemoryKind kind) {
    return bytes[static_cast<std::size_t>(kind)];
  };
  return {
      {"parameters", of(MemoryKind::kParameters)},
      {"gradients", of(MemoryKind::kGradients)},
      {"states", of(MemoryKind::kStates)},
      {"buckets", of(MemoryKind::kBuckets)},
      {"other", of(MemoryKind::kOther)},
      {"peak", std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0})}};
}

const char* name_of(DType dtype) {
  if (dtype == DType::kFloat16) return "fp16";
  return dtype == DType::kBFloat16 ? "bf16" : "fp32";
}

}  // namespace

void Trainer::tell_memory() const {
  const Json memory = memory_of_rank(memory_use().now);
  std::string text;
  for (const auto& [kind, bytes] : memory.items())
    text += fmt::format("{} {} {}", text.empty() ? "" : ",", kind,
                        format_bytes(bytes.get<double>()));
  std::cerr << fmt::format("memory per rank:{}\n", text);
}

void Trainer::tell_saved() {
  end_grace();
  const std::string_view signal = signal_name(save_signal());
  const std::string_view cause = signal.empty() ? "a signal" : signal;
  static_cast<void>(stop(cause));
  std::cerr << fmt::format(
      "stopped by {} at step {} of {}, checkpoint complete: {}; run again with "
      "--resume auto\n",
      cause, newest_step_, options_.steps, checkpointer_->totals().newest);
}

// Writes summary.json, with `more` at its end, and returns its content. Runs on
// rank 0, without communication.
Json Trainer::summarize(const Json& more) {
  Json summary = summary_of(writer_->totals());
  summary["optimizer"] = config::name_of(config_.optimizer);
  summary["semantics"] = to_string(config_.semantics);
  summary["ranks"] = comm_.size();
  summary["steps"] = options_.steps;
  summary["params"] = model_.params().size();
  summary["precision"] = name_of(config_.precision.dtype);
  summary["skipped_steps"] = model_.engine().optimizer().progress().skipped;
  summary["zero"] = config_.zero.stage;
  summary["offload"] =
      config_.zero.offload_optimizer == config::OffloadDevice::kCpu;
  summary["memory"] = memory_of_rank(memory_use().at_peak);
  summary["saves"] = resumed_.saves + checkpointer_->totals().saves;
  summary["save_seconds"] =
      resumed_.save_seconds + checkpointer_->totals().held_seconds;
  if (const auto& wire = config_.zero.wire; !wire.is_exact())
    summary["zero_bits"] = fmt::format("{}/{}", wire.bits_up, wire.bits_down);
  if (is_resumed_) summary["resumed_from"] = resumed_.step;
  summary.update(more);
  writer_->finish(summary);
  return summary;
}

// Writes the records of steps before a signal ended them, and returns the last
// of these steps.
std::int64_t Trainer::stop(std::string_view signal) {
  if (comm_.size() == 1) share_losses();  // local
  const std::int64_t step = writer_->newest() ? writer_->newest()->step : 0;
  static_cast<void>(summarize({{"stopped_at", step}, {"stopped_by", signal}}));
  return step;
}

void Trainer::finish(const std::string& params_checksum) {
  const Json summary = summarize({{"params_checksum", params_checksum}});
  const Totals& totals = writer_->totals();
  const double loss = totals.val_loss.value_or(std::nan(""));
  std::cout << fmt::format(
      "{}: {:.4f} nats per byte on held-out text, {} sent per rank, {:.1f} s\n",
      config::name_of(config_.optimizer), loss,
      format_bytes(static_cast<double>(totals.bytes_sent)), totals.seconds);
  if (const auto skipped = summary.at("skipped_steps"); skipped != 0)
    std::cout << fmt::format(
        "{} of {} steps were skipped: a gradient was not finite\n",
        skipped.get<std::int64_t>(), options_.steps);
  std::cout << fmt::format(
      "for figures: .venv/bin/python examples/train_gpt/report.py {}\n",
      options_.out);
  if (!std::isfinite(loss))
    throw AgreedFailure(
        "the loss is not finite at the end: set a smaller optimizer.params.lr, "
        "or gradient_clipping");
}

}  // namespace thinwire::train_gpt
