// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/bench/result.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "thinwire/core/env.h"
#include "thinwire/kernels/processor.h"

namespace thinwire::apps::bench {

namespace {

double ns_per_element(const Result& r) {
  return r.seconds * 1e9 / static_cast<double>(r.elements);
}

}  // namespace

Machine this_machine() {
  const bool is_automatic = env::prefetch() == env::Prefetch::kAuto;
  return {kernels::processor_name(),
          fmt::format("{}{} ({})", is_automatic ? "auto: " : "",
                      kernels::prefetches() ? "on" : "off",
                      kernels::prefetch_reason())};
}

void Printer::print(const Result& result) {
  if (json_) {
    print_json(result);
  } else {
    if (!has_header_) print_header(result);
    has_header_ = true;
    print_line(result);
  }
  out_.flush();
}

void Printer::print_json(const Result& r) {
  nlohmann::ordered_json line = {{"name", r.name},
                                 {"elements", r.elements},
                                 {"threads", r.threads},
                                 {"ns_per_element", ns_per_element(r)},
                                 {"bytes_per_element", r.bytes_per_element},
                                 {"of_limit", r.of_limit},
                                 {"limit", r.limit},
                                 {"processor", machine_.processor},
                                 {"prefetch", r.prefetch ? "on" : "off"}};
  if (r.of_read_limit) line["of_read_limit"] = *r.of_read_limit;
  if (r.double_passes) line["double_passes"] = *r.double_passes;
  if (r.of_other_prefetch) line["of_other_prefetch"] = *r.of_other_prefetch;
  if (r.wire) {
    line["ranks"] = r.wire->ranks;
    line["bytes_sent"] = r.wire->bytes_sent;
    line["wire_limit_ratio"] = r.wire->limit_ratio;
  }
  out_ << line.dump() << '\n';
}

void Printer::print_header(const Result& r) {
  out_ << fmt::format("processor {}; prefetch {}\n", machine_.processor,
                      machine_.prefetch);
  out_ << fmt::format("{:<{}}  {:>10}  {:>7}  {:>10}  {:>7}  {:>7}  {:>8}",
                      "name", name_width_, "elements", "threads", "ns/element",
                      "bytes/e", "GB/s", "of_limit");
  if (r.wire)
    out_ << fmt::format("  {:>5}  {:>11}  {:>16}", "ranks", "bytes_sent",
                        "wire_limit_ratio");
  out_ << "  limit\n";
}

void Printer::print_line(const Result& r) {
  const double ns = ns_per_element(r);
  out_ << fmt::format(
      "{:<{}}  {:>10}  {:>7}  {:>10.3f}  {:>7.2f}  {:>7.2f}  {:>8.3f}", r.name,
      name_width_, r.elements, r.threads, ns, r.bytes_per_element,
      r.bytes_per_element / ns, r.of_limit);
  if (r.wire)
    out_ << fmt::format("  {:>5}  {:>11}  {:>16.3f}", r.wire->ranks,
                        r.wire->bytes_sent, r.wire->limit_ratio);
  out_ << "  " << r.limit;
  if (r.of_read_limit)
    out_ << fmt::format(" ({:.3f} of read)", *r.of_read_limit);
  if (r.double_passes)
    out_ << fmt::format(" ({:.2f} times as long)", *r.double_passes);
  if (r.of_other_prefetch)
    out_ << fmt::format(" ({:.3f} of the other's speed)", *r.of_other_prefetch);
  out_ << '\n';
}

}  // namespace thinwire::apps::bench
