// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/new_parameters.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "optim/low_bit/denominator/block_denominators.h"
#include "optim/saved_state.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

namespace {

constexpr const char* kMedians = "denominator_medians";
constexpr const char* kFloors = "denominator_floors";

bool contains(std::span<const Range> ranges, std::size_t element) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const Range& r) {
    return r.offset <= element && element < r.end();
  });
}

// Puts the values of saved blocks in their places, and `value` in those of new
// ones.
void insert_blocks(StateDict& state, const char* name, const LowBitModel& model,
                   std::span<const Range> added, float value) {
  const std::vector<Range> ranges = saved_ranges(state, name, model.size());
  const auto saved = saved_values<float>(state, name, ranges.size());
  std::vector<float> values;
  std::vector<std::int64_t> places;
  std::size_t next = 0;
  for (std::size_t b = 0; b < model.num_blocks(); ++b) {
    const Range& at = model.block(b);
    const bool is_new = contains(added, at.offset);
    if (!is_new && next == saved.size()) break;  // load() says what is wrong
    values.push_back(is_new ? value : saved[next]);
    const Range& place = is_new ? at : ranges[next++];
    places.push_back(static_cast<std::int64_t>(place.offset));
    places.push_back(static_cast<std::int64_t>(place.size));
  }
  state.put(name, values);
  state.put(ranges_key(name), places);
}

}  // namespace

void begin_new_parameters(StateDict& state, const LowBitModel& model) {
  if (!state.has_array(ranges_key(kNewParameters))) return;
  const std::vector<Range> added =
      saved_ranges(state, kNewParameters, model.size());
  if (!state.has_array(kMedians)) return;
  const auto saved = state.array(kMedians).as<float>();
  std::vector<float> medians(saved.begin(), saved.end());
  const float median = median_of(medians).value_or(1);
  insert_blocks(state, kMedians, model, added, median);
  insert_blocks(state, kFloors, model, added,
                static_cast<float>(model.settings.denom_floor) * median);

  auto d = saved_values<float>(state, "denominator", model.size());
  std::vector<std::uint8_t> elements(model.size(), kTakesPart);
  if (state.has_array("participation"))
    elements = saved_values<std::uint8_t>(state, "participation", model.size());
  for (const GroupRange& r : model.layout.compressed)
    for (std::size_t i = r.range.offset; i < r.range.end(); ++i) {
      if (!contains(added, i)) continue;
      d[i] = median;
      elements[i] = model.masks.leaves_out(i) ? kOut : kLate;
    }
  state.put("denominator", d);
  state.put("participation", elements);
}

}  // namespace thinwire::optim
