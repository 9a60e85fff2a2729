// SPDX-License-Identifier: Apache-2.0
// Notices of a run and lines of telemetry, made from reports of
// thinwire.report.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "engine/run_notices.h"
#include "thinwire/core/memory.h"
#include "thinwire/engine/telemetry.h"

namespace thinwire::python {
namespace {

using engine::EngineReport;
using engine::RunNotices;
using engine::Telemetry;

// Lines with their kinds: "info", "news" or "mistake".
using Lines = std::vector<std::pair<std::string, std::string>>;
// A RunNotices::State, without names.
using StateTuple = std::tuple<std::set<std::string>, int, std::uint64_t,
                              std::uint64_t, std::uint64_t, std::uint64_t>;

Lines lines_of(RunNotices::Notices notices) {
  constexpr const char* kNames[] = {"info", "news", "mistake"};
  Lines lines;
  for (auto& [kind, text] : notices)
    lines.emplace_back(kNames[static_cast<int>(kind)], std::move(text));
  return lines;
}

optim::Phase phase_of(std::string_view name) {
  for (const auto phase : {optim::Phase::kCompressed, optim::Phase::kLocal})
    if (to_string(phase) == name) return phase;
  return optim::Phase::kExact;
}

// Reads the fields that notices and telemetry need.
EngineReport report_of(nb::handle given) {
  EngineReport report;
  const auto read = [&](const char* name, auto& value) {
    value = nb::cast<std::decay_t<decltype(value)>>(given.attr(name));
  };
  std::string phase;
  read("phase", phase);
  report.phase = phase_of(phase);
  read("applied", report.applied);
  read("nonfinite_rank", report.nonfinite_rank);
  read("gradients_equal", report.gradients_equal);
  read("grad_norm", report.grad_norm);
  read("grad_norm_is_estimate", report.grad_norm_is_estimate);
  read("clip_factor", report.clip_factor);
  read("drift", report.drift);
  read("rho", report.rho);
  read("loss_scale", report.loss_scale);
  read("bits", report.bits);
  read("low_rank", report.low_rank);
  read("bytes_sent", report.bytes_sent);
  read("collectives", report.collectives);
  read("messages", report.messages);
  read("bytes_between_hosts", report.bytes_between_hosts);
  read("seconds", report.seconds);
  read("exchange_seconds", report.exchange_seconds);
  read("comm_busy_seconds", report.comm_busy_seconds);
  return report;
}

template <auto kMethod>
auto tell(RunNotices& self, nb::handle report, std::int64_t steps,
          std::int64_t skipped, std::optional<std::int64_t> freeze_step,
          std::optional<double> loss_scale) {
  return lines_of(
      (self.*kMethod)(report_of(report), {.steps = steps,
                                          .skipped = skipped,
                                          .freeze_step = freeze_step,
                                          .loss_scale = loss_scale}));
}

StateTuple state(const RunNotices& self) {
  const RunNotices::State& s = self.state();
  return {s.announced, s.ranks, s.of_exact_step, s.exactly, s.sent, s.if_exact};
}

void restore(RunNotices& self, std::set<std::string> announced, int ranks,
             std::uint64_t of_exact_step, std::uint64_t exactly,
             std::uint64_t sent, std::uint64_t if_exact) {
  self.restore({.announced = std::move(announced),
                .of_exact_step = of_exact_step,
                .exactly = exactly,
                .ranks = ranks,
                .sent = sent,
                .if_exact = if_exact});
}

void write(Telemetry& self, nb::handle given, std::int64_t steps, double rate,
           std::vector<double> lamb_coeffs) {
  EngineReport report = report_of(given);
  report.steps = steps;
  report.learning_rate = rate;
  self.write(report, {.memory = memory_use(),
                      .lamb_coeffs = std::move(lamb_coeffs),
                      .has_backward = false});
}

}  // namespace

void bind_notices(nb::module_& module) {
  nb::class_<RunNotices>(module, "RunNotices")
      .def(
          "__init__",
          [](RunNotices* self, const config::Config& config, int rank,
             int ranks, std::string own_gradients) {
            new (self)
                RunNotices(config, rank, ranks, std::move(own_gradients));
          },
          "config"_a, "rank"_a, "ranks"_a, "own_gradients"_a)
      .def(
          "at_start",
          [](RunNotices& self, std::optional<std::int64_t> freeze_step) {
            return lines_of(self.at_start(freeze_step));
          },
          "freeze_step"_a.none())
      .def("after_step", &tell<&RunNotices::after_step>, "report"_a, "steps"_a,
           "skipped"_a, "freeze_step"_a.none(), "loss_scale"_a.none())
      .def("skipped", &tell<&RunNotices::skipped>, "report"_a, "steps"_a,
           "skipped"_a, "freeze_step"_a.none(), "loss_scale"_a.none())
      .def_prop_ro("totals",
                   [](const RunNotices& self) {
                     const engine::RunTotals totals = self.totals();
                     return std::pair(totals.bytes_sent, totals.bytes_saved);
                   })
      .def_prop_ro("state", &state)
      .def("restore", &restore, "announced"_a, "ranks"_a, "of_exact_step"_a,
           "exactly"_a, "sent"_a, "if_exact"_a);
  nb::class_<Telemetry>(module, "Telemetry")
      .def(
          "__init__",
          [](Telemetry* self, std::string path, std::int64_t every,
             bool every_rank, int rank) {
            const config::TelemetryConfig config{.path = std::move(path),
                                                 .every = every,
                                                 .every_rank = every_rank};
            new (self) Telemetry(config, rank);
          },
          "path"_a, "every"_a, "every_rank"_a, "rank"_a)
      .def("wants_line", &Telemetry::wants_line, "step"_a)
      .def("write", &write, "report"_a, "steps"_a, "learning_rate"_a,
           "lamb_coeffs"_a);
}

}  // namespace thinwire::python
