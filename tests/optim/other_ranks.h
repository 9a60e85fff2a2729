// SPDX-License-Identifier: Apache-2.0
// States of all ranks, handed on to ranks of any number: in memory, and array
// by array as their descriptions say.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/optim/optimizer.h"

namespace thinwire::test {

/// One rank's state; of `what` only what it says of itself is used.
struct Saved {
  optim::State what;
  StateDict values;
};

inline Saved save(const optim::Optimizer& optimizer) {
  Saved saved{optimizer.state(), {}};
  saved.values = optim::copy_of(saved.what);
  return saved;
}

/// Makes the state of rank `rank` of `world` of those that all ranks saved.
class OtherRanks {
 public:
  OtherRanks(const std::vector<Saved>& saved, int rank, int world)
      : saved_(saved),
        same_world_(static_cast<std::size_t>(world) == saved.size()),
        rank_(same_world_ ? static_cast<std::size_t>(rank) : 0) {}

  /// For an optimizer that keeps `own`.
  [[nodiscard]] StateDict state_for(const optim::State& own) const {
    StateDict state;
    state.put_all("", saved_[rank_].what.common);
    for (const Saved& saved : saved_)
      for (const auto& [name, value] : saved.what.own.scalars()) {
        const Saved& from = same_world_ ? saved_[rank_] : saved;
        const std::int64_t flag = from.what.own.integer(name);
        if (!state.has_scalar(name) || state.integer(name) < flag)
          state.put_integer(name, flag);
      }
    std::set<std::string> names;
    for (const Saved& saved : saved_)
      for (const optim::StateArray& array : saved.what.arrays)
        if (names.insert(array.name).second) add(array, own, state);
    return state;
  }

 private:
  using Axis = optim::Axis;
  using Sharing = optim::Sharing;

  void add(const optim::StateArray& array, const optim::State& own,
           StateDict& state) const {
    const bool is_own = array.sharing == Sharing::kOwn;
    if (array.axis == Axis::kElement) return add_elements(array, own, state);
    if (array.axis == Axis::kRange && is_own && !same_world_)
      return add_largest(array.name, state);
    if (is_own && !same_world_) return;
    const StateDict& from = saved_[is_own ? rank_ : 0].values;
    if (!from.has_array(array.name)) return;
    state.put(array.name, from.array(array.name));
    const std::string ranges = optim::ranges_key(array.name);
    if (from.has_array(ranges)) state.put(ranges, from.array(ranges));
  }

  // Elements by their place in the layout.
  using Elements = std::map<std::size_t, double>;
  [[nodiscard]] static Elements elements_of(const Saved& saved,
                                            const std::string& name) {
    const ConstView values = saved.values.array(name);
    std::vector<float> wide(values.size());
    if (values.dtype() == DType::kUInt8)
      std::ranges::copy(values.as<std::uint8_t>(), wide.begin());
    else
      kernels::convert(values, wide);
    Elements elements;
    std::size_t at = 0;
    for (const Range& range : saved.what.find(name)->ranges)
      for (std::size_t i = range.offset; i < range.end(); ++i)
        elements[i] = wide[at++];
    return elements;
  }

  void add_elements(const optim::StateArray& array, const optim::State& own,
                    StateDict& state) const {
    Elements all = elements_of(saved_[rank_], array.name);
    if (array.sharing == Sharing::kSharded)
      for (const Saved& saved : saved_)
        all.merge(elements_of(saved, array.name));
    if (array.sharing == Sharing::kMean && !same_world_) {
      for (auto& [element, value] : all) value = 0;
      for (const Saved& saved : saved_)
        for (const auto& [element, value] : elements_of(saved, array.name))
          all[element] += value;
      for (auto& [element, value] : all)
        value /= static_cast<double>(saved_.size());
    }
    const optim::StateArray* const wanted = own.find(array.name);
    const bool is_sharded =
        (wanted == nullptr ? array : *wanted).sharing == Sharing::kSharded;
    std::vector<float> values;
    if (is_sharded) {
      for (const Range& range : wanted == nullptr ? own.shard : wanted->ranges)
        for (std::size_t i = range.offset; i < range.end(); ++i)
          values.push_back(static_cast<float>(all.at(i)));
    } else {
      for (const auto& [element, value] : all)
        values.push_back(static_cast<float>(value));
    }
    if (array.dtype == DType::kUInt8) {
      state.put(array.name,
                std::vector<std::uint8_t>(values.begin(), values.end()));
      return;
    }
    Buffer rounded(values.size(), array.dtype);
    kernels::convert(values, rounded.view());
    state.put(array.name, std::move(rounded));
  }

  void add_largest(const std::string& name, StateDict& state) const {
    std::map<std::int64_t, std::uint8_t> largest;
    for (const Saved& saved : saved_) {
      if (!saved.values.has_array(name)) continue;
      const auto values = saved.values.array(name).as<std::uint8_t>();
      const auto ranges =
          saved.values.array(optim::ranges_key(name)).as<std::int64_t>();
      for (std::size_t i = 0; i < values.size(); ++i) {
        auto& value = largest[ranges[2 * i]];
        value = std::max(value, values[i]);
      }
    }
    std::vector<std::uint8_t> values;
    std::vector<std::int64_t> ranges;
    for (const auto& [element, value] : largest) {
      values.push_back(value);
      ranges.insert(ranges.end(), {element, 1});
    }
    state.put(name, values);
    state.put(optim::ranges_key(name), ranges);
  }

  const std::vector<Saved>& saved_;
  const bool same_world_;
  const std::size_t rank_;
};

/// The states that other ranks have saved are adopted here.
inline void adopt(comm::Communicator& comm, optim::Optimizer& optimizer,
                  const std::vector<Saved>& saved) {
  optimizer.adopt(OtherRanks(saved, comm.rank(), comm.size())
                      .state_for(optimizer.state()))();
}

}  // namespace thinwire::test
