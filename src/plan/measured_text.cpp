// SPDX-License-Identifier: Apache-2.0
// Text about networks and measurements.
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "plan/measured_kernels.h"
#include "thinwire/plan/measure.h"
#include "thinwire/plan/plan_table.h"

namespace thinwire::plan {

namespace {

struct Named {
  std::string_view name;
  double spread = 0;
};

// Returns a text such as " (12 %)", or "" if the figure was not measured.
std::string in_brackets(const double* spread) {
  return spread == nullptr ? "" : fmt::format(" ({:.0f} %)", *spread * 100);
}

// Returns a text with a link's figures, which begins with `rate`.
std::string link_text(std::string_view rate, double latency, double message,
                      const LinkSpread* spread) {
  return fmt::format(
      "{}{}, latency {:.3g} us{}, {:.2g} us per message{}\n", rate,
      in_brackets(spread ? &spread->rate : nullptr), latency * 1e6,
      in_brackets(spread ? &spread->latency : nullptr), message * 1e6,
      in_brackets(spread ? &spread->message : nullptr));
}

std::string text_of(const Network& network, const LinkSpread* spread,
                    const LinkSpread* inner_spread) {
  // If flat, hosts are unknown, and each rank has its own link.
  const std::string ranks =
      network.ranks_per_host > 1
          ? fmt::format("{} ranks on {} hosts; card", network.ranks,
                        network.hosts())
          : fmt::format("{} ranks; link of each", network.ranks);
  std::string text =
      link_text(fmt::format("{} {:.3g} Gbit/s", ranks, network.gbps),
                network.latency_seconds, network.message_seconds, spread);
  if (network.processor_seconds_per_byte > 0)
    text += fmt::format("a processor's part: {:.2g} ns per byte sent\n",
                        network.processor_seconds_per_byte * 1e9);
  if (network.ranks_per_host > 1)
    text += link_text(fmt::format("inside a host: {:.3g} GB/s",
                                  network.inner_bytes_per_second * 1e-9),
                      network.inner_latency_seconds,
                      network.inner_message_seconds, inner_spread);
  return text;
}

std::string warning_of(const std::vector<Named>& figures) {
  std::string wide;
  for (const Named& figure : figures)
    if (figure.spread > kMostSpread)
      wide += fmt::format("{}{} {:.0f} %", wide.empty() ? "" : ", ",
                          figure.name, figure.spread * 100);
  if (wide.empty()) return "";
  return fmt::format(
      "warning: rounds of the same measurement differ by more than {:.0f} % "
      "({}): other programs use these machines or their network, so measure "
      "again when they are idle\n",
      kMostSpread * 100, wide);
}

}  // namespace

std::string describe(const Network& network) {
  return text_of(network, nullptr, nullptr);
}

std::string describe(const MeasuredNetwork& network) {
  return text_of(network, &network.spread, &network.inner_spread) +
         unstable(network);
}

std::string unstable(const MeasuredNetwork& network) {
  return warning_of({{"rate", network.spread.rate},
                     {"latency", network.spread.latency},
                     {"message", network.spread.message},
                     {"rate inside a host", network.inner_spread.rate},
                     {"latency inside a host", network.inner_spread.latency},
                     {"message inside a host", network.inner_spread.message}});
}

std::string describe(const MeasuredCompute& compute) {
  std::string text;
  for (const Figure& figure : kFigures) {
    const bool begins =
        &figure == kFigures || figure.line != (&figure - 1)->line;
    text += begins
                ? fmt::format("{}{}: ", text.empty() ? "" : "\n", figure.line)
                : ", ";
    text += fmt::format("{} {:.2f}{}", figure.name, compute.*figure.value * 1e9,
                        in_brackets(&(compute.spread.*figure.value)));
  }
  return text + '\n' + unstable(compute);
}

std::string unstable(const MeasuredCompute& compute) {
  std::vector<Named> all;
  for (const Figure& figure : kFigures)
    all.push_back({figure.name, compute.spread.*figure.value});
  return warning_of(all);
}

}  // namespace thinwire::plan
