// SPDX-License-Identifier: Apache-2.0
#include "optim/experts/joined_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "thinwire/core/error.h"

namespace thinwire::optim {

namespace {

// Reads the values of one array, followed by those of another.
StateArray::Read one_after_another(StateArray::Read first, std::size_t size,
                                   StateArray::Read second) {
  return [first = std::move(first), size, second = std::move(second)](
             Range range, View to) {
    const std::size_t in_first =
        range.offset < size ? std::min(range.size, size - range.offset) : 0;
    if (in_first > 0) first({range.offset, in_first}, to.subview(0, in_first));
    const std::size_t rest = range.size - in_first;
    if (rest > 0)
      second({range.offset + in_first - size, rest},
             to.subview(in_first, rest));
  };
}

std::size_t size_in(const State& part, const std::string& name) {
  const StateArray* const array = part.find(name);
  return array == nullptr ? 0 : array->size;
}

}  // namespace

void join(State& all, State part, const std::string& prefix) {
  for (StateArray& array : part.arrays) {
    if (array.axis == Axis::kGroup) continue;
    array.name = prefix + array.name;
    const auto before = std::ranges::find(all.arrays, array.name,
                                          [](const auto& a) { return a.name; });
    if (before == all.arrays.end()) {
      all.arrays.push_back(std::move(array));
      continue;
    }
    before->read = one_after_another(std::move(before->read), before->size,
                                     std::move(array.read));
    before->size += array.size;
    before->ranges.insert(before->ranges.end(), array.ranges.begin(),
                          array.ranges.end());
  }
  all.shard.insert(all.shard.end(), part.shard.begin(), part.shard.end());
}

void join_under(State& all, State part, const std::string& prefix) {
  for (StateArray& array : part.arrays) {
    array.name = prefix + array.name;
    all.arrays.push_back(std::move(array));
  }
  all.common.put_all(prefix, part.common);
  all.own.put_all(prefix, part.own);
  all.owner.put_all(prefix, part.owner);
  all.shard.insert(all.shard.end(), part.shard.begin(), part.shard.end());
}

std::vector<StateDict> cut(StateDict all, const std::vector<State>& parts,
                           const std::string& prefix) {
  std::vector<StateDict> of_parts(parts.size());
  std::vector<std::string> joined;
  for (std::size_t p = 1; p < parts.size(); ++p) {
    for (const auto& [name, value] : all.scalars())
      of_parts[p].put_scalar(name, value);
    for (const StateArray& array : parts[p].arrays) {
      const std::string key =
          array.axis == Axis::kGroup ? array.name : prefix + array.name;
      if (!all.has_array(key)) continue;
      if (array.axis == Axis::kGroup) {
        of_parts[p].put(array.name, all.array(key));
        continue;
      }
      std::size_t begin = size_in(parts[0], key);
      std::size_t end = begin;
      for (std::size_t q = 1; q < parts.size(); ++q) {
        if (q == p) begin = end;
        end += size_in(parts[q], array.name);
      }
      const ConstView whole = all.array(key);
      if (whole.size() != end)
        throw Error(ErrorCode::kCorruptCheckpoint,
                    fmt::format("state array '{}' must have {} elements with "
                                "those of experts, got {}",
                                key, end, whole.size()));
      of_parts[p].put(array.name, whole.subview(begin, array.size));
      if (std::ranges::find(joined, key) == joined.end()) joined.push_back(key);
    }
  }
  for (const std::string& key : joined) {
    const Buffer whole = all.take(key);
    if (const StateArray* const first = parts[0].find(key))
      all.put(key, whole.view().subview(0, first->size));
  }
  of_parts[0] = std::move(all);
  return of_parts;
}

}  // namespace thinwire::optim
