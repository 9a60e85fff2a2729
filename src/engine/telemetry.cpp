// SPDX-License-Identifier: Apache-2.0
#include "thinwire/engine/telemetry.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/json.h"
#include "core/require.h"

namespace thinwire::engine {

namespace {

Json number(double value) {
  return std::isfinite(value) ? Json::of(value) : Json{};
}

Json count(std::uint64_t value) {
  return Json::of(static_cast<std::int64_t>(value));
}

Json memory_of(const MemoryUse& memory) {
  Json json = Json::object();
  json.add("parameters", count(memory.now_of(MemoryKind::kParameters)));
  json.add("gradients", count(memory.now_of(MemoryKind::kGradients)));
  json.add("states", count(memory.now_of(MemoryKind::kStates)));
  json.add("buckets", count(memory.now_of(MemoryKind::kBuckets)));
  json.add("other", count(memory.now_of(MemoryKind::kOther)));
  return json;
}

// Returns the median of parameters' values; of an even number the mean of two.
Json spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  const double median = values.size() % 2 == 1
                            ? values[middle]
                            : (values[middle - 1] + values[middle]) / 2;
  Json json = Json::object();
  json.add("minimum", number(values.front()));
  json.add("median", number(median));
  json.add("maximum", number(values.back()));
  return json;
}

}  // namespace

double overlap_of(const optim::StepReport& report) noexcept {
  if (report.comm_busy_seconds <= 0) return 1;
  return std::clamp(1 - report.exchange_seconds / report.comm_busy_seconds, 0.0,
                    1.0);
}

std::string telemetry_line(const EngineReport& report,
                           const TelemetryExtra& extra) {
  Json line = Json::object();
  line.add("step", Json::of(report.steps));
  line.add("applied", Json::of(report.applied));
  line.add("phase", Json::of(optim::to_string(report.phase)));
  line.add("loss_scale", number(report.loss_scale));
  if (report.bits != 0) line.add("bits", Json::of(std::int64_t{report.bits}));
  if (report.low_rank != 0)
    line.add("low_rank", Json::of(std::int64_t{report.low_rank}));
  if (report.drift != 0) {  // a sync
    line.add("drift", number(report.drift));
    line.add("rho", number(report.rho));
  }
  line.add("grad_norm", number(report.grad_norm));
  line.add("is_estimate", Json::of(report.grad_norm_is_estimate));
  line.add("clip_factor", number(report.clip_factor));
  line.add("lr", number(report.learning_rate));
  Json seconds = Json::object();
  seconds.add("step", number(report.seconds));
  seconds.add("backward", number(report.backward_seconds));
  seconds.add("wait", number(report.exchange_seconds));
  seconds.add("comm_busy", number(report.comm_busy_seconds));
  line.add("seconds", std::move(seconds));
  line.add("bytes_sent", count(report.bytes_sent));
  line.add("bytes_between_hosts", count(report.bytes_between_hosts));
  line.add("messages", count(report.messages));
  line.add("collectives", count(report.collectives));
  line.add("overlap", number(overlap_of(report)));
  line.add("late_elements", count(report.late_elements));
  line.add("waited_for", Json::of(report.waited_for));
  if (extra.residual_ratio)
    line.add("residual_ratio", number(*extra.residual_ratio));
  if (!extra.lamb_coeffs.empty())
    line.add("lamb_coeffs", spread_of(extra.lamb_coeffs));
  line.add("memory", memory_of(extra.memory));
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
