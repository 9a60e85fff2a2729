// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/state.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "thinwire/kernels/cast.h"

namespace thinwire::optim {

std::string_view to_string(Axis axis) noexcept {
  switch (axis) {
    case Axis::kElement:
      return "element";
    case Axis::kRange:
      return "range";
    case Axis::kParameter:
      return "parameter";
    case Axis::kGroup:
      return "group";
    case Axis::kFree:
      break;
  }
  return "free";
}

std::string_view to_string(Sharing sharing) noexcept {
  switch (sharing) {
    case Sharing::kSame:
      return "same";
    case Sharing::kSharded:
      return "sharded";
    case Sharing::kOwn:
      return "own";
    case Sharing::kMean:
      break;
  }
  return "mean";
}

StateArray::Read StateArray::from(ConstView values) {
  return [values](Range range, View to) {
    const ConstView part = values.subview(range.offset, range.size);
    if (part.bytes() != 0) std::memcpy(to.data(), part.data(), part.bytes());
  };
}

StateArray::Read StateArray::from(Buffer&& values) {
  const auto kept = std::make_shared<const Buffer>(std::move(values));
  return [kept, read = from(kept->view())](Range range, View to) {
    read(range, to);
  };
}

namespace {

StateArray in_memory(std::string name, Axis axis, Sharing sharing,
                     std::vector<Range> ranges, ConstView values) {
  return {.name = std::move(name),
          .dtype = values.dtype(),
          .axis = axis,
          .sharing = sharing,
          .size = values.size(),
          .ranges = std::move(ranges),
          .read = StateArray::from(values)};
}

}  // namespace

StateArray& State::add_elements(std::string name, Sharing sharing,
                                std::vector<Range> ranges, ConstView values) {
  return arrays.emplace_back(in_memory(std::move(name), Axis::kElement, sharing,
                                       std::move(ranges), values));
}

StateArray& State::add_ranges(std::string name, Sharing sharing,
                              std::vector<Range> ranges, ConstView values) {
  return arrays.emplace_back(in_memory(std::move(name), Axis::kRange, sharing,
                                       std::move(ranges), values));
}

void State::add_parameters(std::string name, ConstView values) {
  arrays.push_back(
      in_memory(std::move(name), Axis::kParameter, Sharing::kSame, {}, values));
}

void State::add_groups(std::string name, ConstView values) {
  arrays.push_back(
      in_memory(std::move(name), Axis::kGroup, Sharing::kSame, {}, values));
}

void State::add_free(std::string name, ConstView values) {
  arrays.push_back(
      in_memory(std::move(name), Axis::kFree, Sharing::kSame, {}, values));
}

namespace {

// Returns the position of elements `range` in an array of `ranges`, if one of
// these contains all of them.
std::optional<std::size_t> place_in(const std::vector<Range>& ranges,
                                    Range range) {
  std::size_t before = 0;
  for (const Range& held : ranges) {
    if (range.offset >= held.offset && range.end() <= held.end())
      return before + range.offset - held.offset;
    before += held.size;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::vector<float>> elements_of(const State& state,
                                              std::string_view array,
                                              Range range) {
  const std::string of_experts = kOfExperts + std::string(array);
  for (const StateArray& found : state.arrays) {
    // A load by another number of ranks starts from a mean, but here each rank
    // has different values.
    if (found.axis != Axis::kElement ||
        (found.sharing != Sharing::kSame && found.sharing != Sharing::kMean) ||
        (found.name != array && found.name != of_experts))
      continue;
    const auto begin = place_in(found.ranges, range);
    if (!begin) continue;
    Buffer values(range.size, found.dtype);
    found.read({*begin, range.size}, values.view());
    std::vector<float> wide(range.size);
    kernels::convert(values.view(), wide);
    return wide;
  }
  return std::nullopt;
}

const StateArray* State::find(std::string_view name) const noexcept {
  for (const StateArray& array : arrays)
    if (array.name == name) return &array;
  return nullptr;
}

std::string ranges_key(std::string_view array) {
  return std::string(array) + ".ranges";
}

StateDict copy_of(const State& state) {
  StateDict copy;
  copy.put_all("", state.common);
  copy.put_all("", state.own);
  copy.put_all("", state.owner);
  for (const StateArray& array : state.arrays) {
    Buffer values(array.size, array.dtype);
    array.read({0, array.size}, values.view());
    copy.put(array.name, std::move(values));
    if (array.axis != Axis::kRange) continue;
    std::vector<std::int64_t> ranges;
    for (const Range& range : array.ranges) {
      ranges.push_back(static_cast<std::int64_t>(range.offset));
      ranges.push_back(static_cast<std::int64_t>(range.size));
    }
    copy.put(ranges_key(array.name), ranges);
  }
  return copy;
}

}  // namespace thinwire::optim
