// SPDX-License-Identifier: Apache-2.0
#include "optim/averages/unit_state.h"

#include <span>
#include <string>
#include <utility>

#include "core/ranges.h"
#include "optim/saved_state.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::optim {

namespace {

// Calls body(range, part) for each range and its part of an array, in which the
// ranges' elements are adjacent.
template <class Body>
void for_ranges(std::span<const Range> ranges, Body body) {
  std::size_t done = 0;
  for (const Range& range : ranges) {
    body(range, Range{done, range.size});
    done += range.size;
  }
}

template <class AnyView>
AnyView part(AnyView whole, const Range& at) {
  return whole.subview(at.offset, at.size);
}

Buffer packed(ConstView values, std::span<const Range> ranges) {
  Buffer result = Buffer::of<float>(total_size(ranges));
  for_ranges(ranges, [&](const Range& range, const Range& at) {
    kernels::convert(part(values, range), part(result.view(), at));
  });
  return result;
}

Buffer unpacked(StateDict& state, const char* name,
                std::span<const Range> ranges, std::size_t size) {
  const Buffer saved =
      take_floats(state, name, DType::kFloat32, total_size(ranges));
  Buffer result = Buffer::of<float>(size);
  for_ranges(ranges, [&](const Range& range, const Range& at) {
    kernels::convert(part(saved.view(), at), part(result.view(), range));
  });
  return result;
}

void add(State& state, const char* name, Sharing sharing,
         const std::vector<Range>& ranges, ConstView values) {
  Buffer own = packed(values, ranges);
  StateArray& added =
      state.add_elements(name, sharing, ranges, std::as_const(own).view());
  added.read = StateArray::from(std::move(own));
}

}  // namespace

void add_unit_errors(State& state, const UnitResidualParts& parts,
                     ConstView worker, ConstView server) {
  if (total_size(parts.encoded) == worker.size())
    state.add_elements(parts.worker, Sharing::kMean, parts.encoded, worker);
  else
    add(state, parts.worker, Sharing::kMean, parts.encoded, worker);
  add(state, parts.server, Sharing::kSharded, parts.served, server);
}

std::optional<UnitErrors> take_unit_errors(StateDict& state,
                                           const UnitResidualParts& parts,
                                           std::size_t size) {
  if (!state.has_array(parts.worker) && !state.has_array(parts.server))
    return std::nullopt;
  UnitErrors taken;
  taken.worker = unpacked(state, parts.worker, parts.encoded, size);
  taken.server = unpacked(state, parts.server, parts.served, size);
  return taken;
}

}  // namespace thinwire::optim
