// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/bench/rows.h"

#include <fmt/format.h>

#include <iostream>
#include <optional>
#include <utility>

#include "kernels/prefetch.h"
#include "thinwire/kernels/processor.h"

namespace thinwire::apps::bench {

namespace {

// Restores the processor's choice, however measuring ends.
struct PrefetchAsChosen {
  PrefetchAsChosen() = default;
  ~PrefetchAsChosen() { kernels::force_prefetch(std::nullopt); }
  PrefetchAsChosen(const PrefetchAsChosen&) = delete;
  PrefetchAsChosen& operator=(const PrefetchAsChosen&) = delete;
};

Variant with_prefetch(const Variant& variant, std::optional<bool> prefetch) {
  if (!prefetch) return variant;
  return {variant.run, [before = variant.before, prefetch] {
            kernels::force_prefetch(prefetch);
            if (before) before();
          }};
}

}  // namespace

void say_if_busy(const std::string& row, const Interleaved& measured) {
  if (measured.busy_rounds > 0)
    std::cerr << fmt::format(
        "thinwire: {}: {} of {} rounds began while something else kept the "
        "machine busy\n",
        row, measured.busy_rounds, measured.seconds.front().size());
}

std::vector<std::vector<const Row*>> in_groups(
    std::span<const Row* const> rows) {
  std::vector<std::vector<const Row*>> groups;
  for (const Row* row : rows) {
    const bool joins = row->prefetch && !groups.empty() &&
                       groups.back().back()->prefetch &&
                       groups.back().back()->stem() == row->stem();
    if (!joins) groups.emplace_back();
    groups.back().push_back(row);
  }
  return groups;
}

std::vector<Result> measure(std::span<const Row* const> group,
                            const Settings& settings) {
  const Row& first = *group.front();
  ThreadPool pool(settings.threads);
  Limits limits(settings.elements, pool);
  const PrefetchAsChosen restored;
  const Variant prepared = first.prepare(settings.elements, pool);

  std::vector<Variant> variants;
  for (const Row* row : group)
    variants.push_back(with_prefetch(prepared, row->prefetch));
  const std::size_t limit = variants.size();
  variants.push_back({[&] { limits.run(first.limit); }});
  if (first.only_reads) variants.push_back({[&] { limits.run(Limit::kRead); }});
  const Interleaved measured = interleave(variants, settings.rounds);
  say_if_busy(fmt::format("{} with threads={}", first.name, settings.threads),
              measured);

  const auto& seconds = measured.seconds;
  std::vector<Result> results;
  for (std::size_t v = 0; v < group.size(); ++v) {
    const Row& row = *group[v];
    const auto of = [&](std::size_t other, Limit kind) {
      return row.bytes_per_element / bytes_per_element(kind) *
             median_ratio(seconds[other], seconds[v]);
    };
    Result result{.name = row.name,
                  .elements = settings.elements,
                  .threads = settings.threads,
                  .prefetch = row.prefetch.value_or(kernels::prefetches()),
                  .seconds = median(seconds[v]),
                  .bytes_per_element = row.bytes_per_element,
                  .limit = to_string(row.limit),
                  .of_limit = of(limit, row.limit)};
    if (row.only_reads) result.of_read_limit = of(limit + 1, Limit::kRead);
    if (row.limit == Limit::kTwice)
      result.double_passes = median_ratio(seconds[v], seconds[limit]);
    if (group.size() == 2)
      result.of_other_prefetch = median_ratio(seconds[1 - v], seconds[v]);
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace thinwire::apps::bench
