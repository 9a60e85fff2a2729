// SPDX-License-Identifier: Apache-2.0
#include "thinwire/engine/telemetry.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/json_text.h"
#include "core/require.h"

namespace thinwire::engine {

namespace {

JsonValue number(double value) {
  return std::isfinite(value) ? short_number(value) : JsonValue();
}

JsonValue memory_of(const MemoryUse& memory) {
  return {{"parameters", memory.now_of(MemoryKind::kParameters)},
          {"gradients", memory.now_of(MemoryKind::kGradients)},
          {"states", memory.now_of(MemoryKind::kStates)},
          {"buckets", memory.now_of(MemoryKind::kBuckets)},
          {"other", memory.now_of(MemoryKind::kOther)}};
}

// Returns the minimum, the median and the maximum. The median of an even number
// of values is the mean of the middle two.
JsonValue spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  const double median = values.size() % 2 == 1
                            ? values[middle]
                            : (values[middle - 1] + values[middle]) / 2;
  return {{"minimum", number(values.front())},
          {"median", number(median)},
          {"maximum", number(values.back())}};
}

}  // namespace

double overlap_of(const optim::StepReport& report) noexcept {
  if (report.comm_busy_seconds <= 0) return 1;
  return std::clamp(1 - report.exchange_seconds / report.comm_busy_seconds, 0.0,
                    1.0);
}

std::string telemetry_line(const EngineReport& report,
                           const TelemetryExtra& extra) {
  JsonValue line{{"step", report.steps},
                 {"applied", report.applied},
                 {"phase", optim::to_string(report.phase)},
                 {"loss_scale", number(report.loss_scale)}};
  if (report.bits != 0) line["bits"] = report.bits;
  if (report.low_rank != 0) line["low_rank"] = report.low_rank;
  if (report.drift != 0) {  // a sync
    line["drift"] = number(report.drift);
    line["rho"] = number(report.rho);
  }
  JsonValue seconds{{"step", number(report.seconds)}};
  if (extra.has_backward) seconds["backward"] = number(report.backward_seconds);
  seconds["wait"] = number(report.exchange_seconds);
  seconds["comm_busy"] = number(report.comm_busy_seconds);
  line.update({{"grad_norm", number(report.grad_norm)},
               {"is_estimate", report.grad_norm_is_estimate},
               {"clip_factor", number(report.clip_factor)},
               {"lr", number(report.learning_rate)},
               {"seconds", std::move(seconds)},
               {"bytes_sent", report.bytes_sent},
               {"bytes_between_hosts", report.bytes_between_hosts},
               {"messages", report.messages},
               {"collectives", report.collectives},
               {"overlap", number(overlap_of(report))}});
  if (extra.has_backward) {
    line["late_elements"] = report.late_elements;
    line["waited_for"] = report.waited_for;
  }
  if (extra.residual_ratio)
    line["residual_ratio"] = number(*extra.residual_ratio);
  if (!extra.lamb_coeffs.empty())
    line["lamb_coeffs"] = spread_of(extra.lamb_coeffs);
  line["memory"] = memory_of(extra.memory);
  return compact_json(line);
}

Telemetry::Telemetry(const config::TelemetryConfig& config, int rank)
    : every_(config.every), residual_every_(config.residual_every) {
  require(every_ >= 1, "telemetry.every", ">= 1", every_);
  require(residual_every_ >= 0, "telemetry.residual_every", ">= 0",
          residual_every_);
  if (config.path.empty() || (rank != 0 && !config.every_rank)) return;
  file_.emplace(config.every_rank ? fmt::format("{}.rank{}", config.path, rank)
                                  : config.path);
}

bool Telemetry::wants_line(std::int64_t step) const noexcept {
  return file_.has_value() && step % every_ == 0;
}

bool Telemetry::wants_residual_ratio(std::int64_t step) const noexcept {
  return wants_line(step) && residual_every_ > 0 && step % residual_every_ == 0;
}

void Telemetry::write(const EngineReport& report, const TelemetryExtra& extra) {
  file_->write(telemetry_line(report, extra));
}

}  // namespace thinwire::engine
