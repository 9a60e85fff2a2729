// SPDX-License-Identifier: Apache-2.0
#include "thinwire/engine/plan_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/json.h"

namespace thinwire::engine {

namespace {

std::string_view exchange_of(const Prediction& p) {
  return p.is_by_host ? "by_host" : "flat";
}

std::string milliseconds(double seconds) {
  const double ms = seconds * 1e3;
  return fmt::format("{:.{}f}", ms, ms < 10 ? 2 : ms < 1000 ? 1 : 0);
}

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  for (; bytes >= 1000 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1000;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 2, kUnits[unit]);
}

std::string break_even_text(const Prediction& p) {
  if (p.way == Way::kExact) return "-";
  if (p.break_even_gbps == 0) return "never faster";
  if (std::isinf(p.break_even_gbps)) return "always faster";
  return fmt::format("{:.3g} Gbit/s", p.break_even_gbps);
}

// What the columns leave open.
std::string notes_on(std::span<const Prediction> all) {
  std::string text =
      "break-even: against exact averages with the same exchange; always "
      "faster: at 1 Tbit/s too; never faster: on no card from 1 Mbit/s to 1 "
      "Tbit/s\n";
  for (const Prediction& p : all) {
    if (p.way != Way::kZeroOneAdam || p.is_by_host) continue;
    text += fmt::format("{}: means over its steps, counted ", to_string(p.way));
    text += p.steps_per_variance_step > 0
                ? fmt::format(
                      "before its freeze, at one variance step in "
                      "{:.4g} steps\n",
                      p.steps_per_variance_step)
                : fmt::format("after its freeze, at one sync in {:.4g} steps\n",
                              p.steps_per_exchange);
  }
  return text;
}

constexpr const char* kLine = "{:<14}{:<9}{:>10}{:>12}{:>9}{:>12}  {}\n";

}  // namespace

std::string describe(const Network& network) {
  // Flat, nothing is known of hosts, and each rank has a link of its own.
  const std::string ranks =
      network.ranks_per_host > 1
          ? fmt::format("{} ranks on {} hosts; card", network.ranks,
                        network.hosts())
          : fmt::format("{} ranks; link of each", network.ranks);
  std::string text = fmt::format(
      "{} {:.3g} Gbit/s, latency {:.3g} us, {:.2g} us per message\n", ranks,
      network.gbps, network.latency_seconds * 1e6,
      network.message_seconds * 1e6);
  if (network.processor_seconds_per_byte > 0)
    text += fmt::format("a processor's part: {:.2g} ns per byte sent\n",
                        network.processor_seconds_per_byte * 1e9);
  if (network.ranks_per_host > 1)
    text += fmt::format(
        "inside a host: {:.3g} GB/s, latency {:.3g} us, {:.2g} us per "
        "message\n",
        network.inner_bytes_per_second * 1e-9,
        network.inner_latency_seconds * 1e6,
        network.inner_message_seconds * 1e6);
  return text;
}

std::string describe(const Compute& compute) {
  return fmt::format(
      "ns per element: encode {:.2f}, serve {:.2f}, update {:.2f}, norm "
      "{:.2f}, Adam {:.2f}, sum {:.2f}; 0/1 Adam: local step {:.2f}, sync "
      "{:.2f} + {:.2f}; 4 bits: up {:.2f} + {:.2f}, down {:.2f} + {:.2f}\n",
      compute.encode * 1e9, compute.serve * 1e9, compute.update * 1e9,
      compute.norm * 1e9, compute.exact_update * 1e9, compute.sum * 1e9,
      compute.local_step * 1e9, compute.sync_encode * 1e9,
      compute.sync_update * 1e9, compute.quantize * 1e9,
      compute.quantized_mean * 1e9, compute.difference * 1e9,
      compute.dequantize * 1e9);
}

const Prediction& fastest(std::span<const Prediction> all) {
  return *std::min_element(all.begin(), all.end(),
                           [](const Prediction& a, const Prediction& b) {
                             return a.step_seconds < b.step_seconds;
                           });
}

std::string plan_table(std::span<const Prediction> all) {
  std::string text = fmt::format(kLine, "way", "exchange", "ms/step",
                                 "sent/rank", "rounds", "memory", "break-even");
  for (const Prediction& p : all)
    text += fmt::format(
        kLine, to_string(p.way), exchange_of(p), milliseconds(p.step_seconds),
        bytes_text(p.traffic.bytes), fmt::format("{:.4g}", p.traffic.rounds),
        bytes_text(p.memory.total()), break_even_text(p));
  text += notes_on(all);
  const Prediction& best = fastest(all);
  return text + fmt::format("fastest: {}, {}, {} ms per step\n",
                            to_string(best.way), exchange_of(best),
                            milliseconds(best.step_seconds));
}

std::string plan_json(std::span<const Prediction> all) {
  std::string text;
  for (const Prediction& p : all) {
    Json line = Json::object();
    line.add("way", Json::of(to_string(p.way)));
    line.add("exchange", Json::of(exchange_of(p)));
    line.add("ms_per_step", Json::of(p.step_seconds * 1e3));
    line.add("bytes_sent", Json::of(p.traffic.bytes));
    line.add("bytes_between_hosts", Json::of(p.traffic.bytes_between_hosts));
    line.add("messages", Json::of(p.traffic.messages));
    line.add("rounds", Json::of(p.traffic.rounds));
    line.add("memory_bytes", Json::of(p.memory.total()));
    line.add("break_even_gbps", std::isinf(p.break_even_gbps)
                                    ? Json{}
                                    : Json::of(p.break_even_gbps));
    text += compact_json(line) + '\n';
  }
  const Prediction& best = fastest(all);
  Json last = Json::object();
  last.add("fastest", Json::of(to_string(best.way)));
  last.add("exchange", Json::of(exchange_of(best)));
  last.add("has_spare_core", Json::of(best.has_spare_core));
  return text + compact_json(last) + '\n';
}

}  // namespace thinwire::engine
