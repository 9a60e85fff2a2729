// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/mean.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "checkpoint/rows.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/checksum.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::checkpoint {

using optim::Axis;
using optim::Sharing;
using optim::StateArray;

namespace {

// Most bytes that a rank sends at once.
constexpr std::size_t kMostSentBytes = std::size_t{64} << 20;

// To the odd one of the two neighbours where `x` is no float: rounding that to
// 16 bits is rounding x.
float rounded_to_odd(double x) {
  const auto nearest = static_cast<float>(x);
  if (static_cast<double>(nearest) == x || !std::isfinite(nearest))
    return nearest;
  const float below = std::abs(static_cast<double>(nearest)) > std::abs(x)
                          ? std::nextafter(nearest, 0.0f)
                          : nearest;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(below) | 1u);
}

bool is_mean(const StateArray& array) {
  return array.sharing == Sharing::kMean && array.axis == Axis::kElement;
}

void require_same_elements(comm::Communicator& comm,
                           const optim::State& state) {
  std::string text;
  for (const StateArray& array : state.arrays) {
    if (!is_mean(array)) continue;
    for (const Range& range : array.ranges)
      fmt::format_to(std::back_inserter(text), "{}: {} from {}\n", array.name,
                     range.size, range.offset);
  }
  comm::require_same(comm, "elements of which the ranks' mean is saved", text);
}

// This rank's share of the mean.
Buffer reduced(comm::Communicator& comm, const StateArray& array) {
  const int world = comm.size();
  const auto ranks = static_cast<std::size_t>(world);
  const std::size_t own = share_of(array.size, comm.rank(), world).size;
  const std::size_t longest = share_of(array.size, 0, world).size;
  const std::size_t most =
      std::max<std::size_t>(1, kMostSentBytes / size_of(array.dtype) / ranks);
  Buffer mean(own, array.dtype);
  for (std::size_t begin = 0; begin < longest; begin += most) {
    const auto part = [&](std::size_t share) {
      return std::min(most, share - std::min(begin, share));
    };
    std::vector<std::size_t> counts;
    Buffer sent(std::min(array.size, most * ranks), array.dtype);
    std::size_t filled = 0;
    for (int r = 0; r < world; ++r) {
      const Range share = share_of(array.size, r, world);
      counts.push_back(part(share.size));
      array.read({share.offset + begin, counts.back()},
                 sent.view().subview(filled, counts.back()));
      filled += counts.back();
    }
    const std::size_t count = part(own);
    Buffer received(count * ranks, array.dtype);
    const std::vector<std::size_t> from_each(ranks, count);
    comm.all_to_all(std::as_const(sent).view().subview(0, filled), counts,
                    received.view(), from_each);
    MeanOfRanks sums(count);
    for (std::size_t r = 0; r < ranks; ++r)
      sums.add(std::as_const(received).view().subview(r * count, count));
    if (count > 0) sums.write(mean.view().subview(begin, count));
  }
  return mean;
}

}  // namespace

void MeanOfRanks::add(ConstView values, std::size_t first) {
  const auto own = std::span(floats_).subspan(first, values.size());
  kernels::convert(values, own);
  for (std::size_t i = 0; i < own.size(); ++i) {
    sums_[first + i] += own[i];
    ++ranks_[first + i];
  }
}

bool MeanOfRanks::is_of(std::size_t ranks) const {
  return std::ranges::all_of(ranks_,
                             [&](auto count) { return count == ranks; });
}

void MeanOfRanks::write(View to) {
  const bool is_float = to.dtype() == DType::kFloat32;
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    const double mean = sums_[i] / ranks_[i];
    floats_[i] = is_float ? static_cast<float>(mean) : rounded_to_odd(mean);
  }
  kernels::convert(floats_, to);
}

namespace {

// The ranks whose array speaks of the same elements; null: all do.
std::unique_ptr<comm::Communicator> with_same_elements(
    comm::Communicator& comm, const StateArray& array) {
  std::vector<std::int64_t> own;
  for (const Range& range : array.ranges) {
    own.push_back(static_cast<std::int64_t>(range.offset));
    own.push_back(static_cast<std::int64_t>(range.size));
  }
  const std::uint64_t mine = checksum(own);
  std::vector<std::uint64_t> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(ConstView(&mine, sizeof mine, DType::kUInt8),
                  View(all.data(), all.size() * sizeof mine, DType::kUInt8));
  if (std::ranges::count(all, mine) == comm.size()) return nullptr;
  return comm.split(
      static_cast<int>(std::ranges::find(all, mine) - all.begin()));
}

void replace_by_mean(comm::Communicator& comm, StateArray& array) {
  const std::size_t begin =
      share_of(array.size, comm.rank(), comm.size()).offset;
  array.sharing = Sharing::kSame;
  array.read = [read = StateArray::from(reduced(comm, array)), begin](
                   Range range, View to) {
    read({range.offset - begin, range.size}, to);
  };
}

// This rank keeps a part of its host's piece, of all hosts' mean.
void replace_by_shard_of_mean(comm::Communicator& hosts, StateArray& array) {
  const Range share = share_of(array.size, hosts.rank(), hosts.size());
  array.read = StateArray::from(reduced(hosts, array));
  array.sharing = Sharing::kSharded;
  array.ranges = part_of_ranges(array.ranges, share);
  array.size = share.size;
}

}  // namespace

void replace_by_means(comm::Communicator& comm, optim::State& state) {
  const bool is_by_host = state.common.has_scalar(optim::kRanksPerHost);
  if (!is_by_host) require_same_elements(comm, state);
  for (StateArray& array : state.arrays) {
    if (!is_mean(array)) continue;
    const auto hosts = is_by_host ? with_same_elements(comm, array) : nullptr;
    if (hosts)
      replace_by_shard_of_mean(*hosts, array);
    else
      replace_by_mean(comm, array);
  }
}

}  // namespace thinwire::checkpoint
