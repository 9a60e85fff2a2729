// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/read/state_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "checkpoint/commit/root.h"
#include "checkpoint/save_plan.h"
#include "core/ranges.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::checkpoint {

using optim::Axis;
using optim::Sharing;

namespace {

// Name of the scalar that a ZeRO state has if its parameters travel in 4 or 8
// bits.
constexpr const char* kBitsDown = "bits_down";
// Largest number of bytes that are exchanged at once.
constexpr std::size_t kMostExchangedBytes = std::size_t{64} << 20;

// Returns the ranges sorted, with adjacent ones joined.
std::vector<Range> joined(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.offset < b.offset; });
  std::vector<Range> result;
  for (const Range& range : ranges) append_joined(result, range);
  return result;
}

// Returns the parts of `ranges` that lie in `within`, in the order of `ranges`.
// `within` must be sorted.
std::vector<Range> common_part(std::span<const Range> ranges,
                               std::span<const Range> within) {
  std::vector<Range> result;
  for (const Range& range : ranges) {
    auto at = std::partition_point(
        within.begin(), within.end(),
        [&](const Range& w) { return w.end() <= range.offset; });
    for (; at != within.end() && at->offset < range.end(); ++at) {
      const std::size_t begin = std::max(range.offset, at->offset);
      result.push_back({begin, std::min(range.end(), at->end()) - begin});
    }
  }
  return result;
}

// Accepts a prefix, which marks the array of an optimizer inside another one.
bool is_worker_error(std::string_view name) {
  return name == optim::kWorkerError || name.ends_with(".worker_error");
}

}  // namespace

StateReader::StateReader(comm::Communicator& comm,
                         const ParameterLayout& layout,
                         const Manifest& manifest, SavedArrays& arrays,
                         Weights& weights, const Matching& matching,
                         bool share_reads)
    : comm_(comm),
      layout_(layout),
      manifest_(manifest),
      arrays_(arrays),
      weights_(weights),
      matching_(matching),
      shares_(share_reads && comm.size() > 1),
      now_(manifest.parameters.size()) {
  for (std::size_t i = 0; i < matching.saved.size(); ++i)
    if (matching.saved[i]) now_[*matching.saved[i]] = i;
}

void StateReader::attempt(const std::function<void()>& body) {
  if (failure_) return;
  try {
    body();
  } catch (...) {
    failure_ = std::current_exception();
  }
}

void StateReader::finish() {
  everywhere(comm_, [this] {
    if (failure_) std::rethrow_exception(failure_);
  });
}

// ---- values, piece by piece

Buffer StateReader::fill(std::size_t size, DType dtype, bool is_shared,
                         const Read& read) {
  // Values of new parameters are not read.
  Buffer values(size, dtype, matching_.has_new() ? Fill::kZeros : Fill::kNone);
  const std::size_t most = kMostExchangedBytes / size_of(dtype);
  for (std::size_t begin = 0; begin < size; begin += most) {
    const Range piece{begin, std::min(most, size - begin)};
    const View to = values.view().subview(piece.offset, piece.size);
    if (!is_shared || !shares_) {
      attempt([&] { read(piece, to); });
      continue;
    }
    std::vector<std::size_t> counts;
    for (int r = 0; r < comm_.size(); ++r)
      counts.push_back(share_of(piece.size, r, comm_.size()).size);
    const Range own = share_of(piece.size, comm_.rank(), comm_.size());
    const View mine = to.subview(own.offset, own.size);
    attempt([&] { read({piece.offset + own.offset, own.size}, mine); });
    comm_.all_gather(mine, to, counts);
  }
  return values;
}

void StateReader::for_rows(
    std::span<const Range> ranges, Range part, View to,
    const std::function<void(const Row&, View)>& body) const {
  std::size_t done = 0;
  for (const Row& row : rows_of(layout_, part_of_ranges(ranges, part))) {
    const View values = to.subview(done, row.range.size);
    done += row.range.size;
    const auto& saved = matching_.saved[row.parameter];
    if (saved) body({*saved, row.range}, values);
  }
}

StateReader::Read StateReader::elements(const SavedArray& array,
                                        std::vector<Range> ranges) {
  const int rank = SavedArrays::is_per_rank(array) ? comm_.rank() : -1;
  return [this, name = array.name, rank, ranges = std::move(ranges)](Range part,
                                                                     View to) {
    for_rows(ranges, part, to, [&](const Row& row, View values) {
      arrays_.read(name, rank, row.parameter, row.range, values);
    });
  };
}

// ---- parameters and masters

// Returns the saved masters. Parameters in fp32 have some only if low-bit
// replicas lag behind them.
const SavedArray* StateReader::saved_masters() const noexcept {
  const bool is_behind = manifest_.scalars.has_scalar(kBitsDown);
  if (manifest_.precision == "fp32" && !is_behind) return nullptr;
  for (const SavedArray& array : manifest_.arrays)
    if (array.is_parameters || (is_behind && array.name == "masters"))
      return &array;
  return nullptr;
}

StateReader::Read StateReader::weights(std::vector<Range> ranges) {
  return [this, ranges = std::move(ranges)](Range part, View to) {
    for_rows(ranges, part, to, [&](const Row& row, View values) {
      const auto& [name, shape, group, type] =
          manifest_.parameters[row.parameter];
      if (type.dtype == values.dtype()) {
        weights_.read(name, row.range, values);
        return;
      }
      Buffer saved(row.range.size, type.dtype);
      weights_.read(name, row.range, saved.view());
      kernels::convert(std::as_const(saved).view(), values);
    });
  };
}

// Returns the most precise saved values: the fp32 masters, or else the weights.
StateReader::Read StateReader::masters(std::vector<Range> ranges, DType dtype) {
  const SavedArray* const saved = saved_masters();
  if (saved == nullptr) return weights(std::move(ranges));
  const Read read = elements(*saved, std::move(ranges));
  if (saved->dtype == dtype) return read;
  return [read, from = saved->dtype](Range part, View to) {
    Buffer values(part.size, from);
    read(part, values.view());
    kernels::convert(std::as_const(values).view(), to);
  };
}

Buffer StateReader::parameters(DType dtype, Range elements,
                               const optim::State* target) {
  const std::vector<Range> all{elements};
  const bool leaves_replicas =
      manifest_.scalars.has_scalar(kBitsDown) &&
      (target == nullptr || !target->common.has_scalar(kBitsDown));
  const bool is_same =
      saved_masters() == nullptr ||
      (manifest_.precision == precision_name(dtype) && !leaves_replicas);
  Buffer values = fill(elements.size, dtype, true,
                       is_same ? weights(all) : masters(all, dtype));
  weights_.forget_chunk();
  return values;
}

// ---- the state

std::vector<Range> StateReader::placed(
    std::span<const SavedPiece> pieces) const {
  std::vector<Range> ranges;
  for (const SavedPiece& piece : pieces)
    if (const auto& now = now_[piece.parameter])
      ranges.push_back({layout_.parameters()[*now].offset + piece.range.offset,
                        piece.range.size});
  return ranges;
}

std::vector<Range> StateReader::new_parameters() const {
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < matching_.saved.size(); ++i)
    if (!matching_.saved[i])
      ranges.push_back(
          {layout_.parameters()[i].offset, layout_.parameters()[i].size});
  return ranges;
}

// Returns the elements of the target's array of this name. If the target has no
// such array, returns all saved elements, or this rank's share of them.
std::vector<Range> StateReader::wanted(const SavedArray& array,
                                       const optim::State& target) {
  if (const optim::StateArray* const known = target.find(array.name))
    if (known->axis == Axis::kElement) return known->ranges;
  if (array.is_parameters) return {{0, layout_.size()}};
  if (is_worker_error(array.name) && target.encoded) return *target.encoded;
  std::vector<Range> ranges = placed(arrays_.pieces(array.name, 0));
  for (const Range& range : new_parameters()) ranges.push_back(range);
  ranges = joined(std::move(ranges));
  return array.sharing == Sharing::kSharded ? common_part(target.shard, ranges)
                                            : ranges;
}

void StateReader::add_elements(StateDict& dict, const SavedArray& array,
                               const optim::State& target) {
  const optim::StateArray* const known = target.find(array.name);
  std::vector<Range> ranges = wanted(array, target);
  const std::size_t size = total_size(ranges);
  const Sharing sharing = known != nullptr ? known->sharing : array.sharing;
  const bool is_by_host = target.common.has_scalar(optim::kRanksPerHost);
  // In a hierarchical state the pieces differ between ranks, and the values
  // between hosts.
  const bool differs =
      is_by_host && (sharing == Sharing::kMean || is_worker_error(array.name));
  const bool is_shared = sharing != Sharing::kSharded && !differs;
  const bool stays_own = same_ranks_ && (differs || sharing == Sharing::kMean ||
                                         target.has_local_steps);
  if (array.is_parameters) {
    const DType dtype = known != nullptr ? known->dtype : array.dtype;
    dict.put(array.name,
             fill(size, dtype, is_shared, masters(std::move(ranges), dtype)));
  } else if (array.sharing == Sharing::kMean) {
    dict.put(array.name,
             fill(size, array.dtype, is_shared && !stays_own,
                  mean_of_ranks(array, std::move(ranges), stays_own)));
  } else {
    const bool is_own = SavedArrays::is_per_rank(array);
    dict.put(array.name, fill(size, array.dtype, is_shared && !is_own,
                              elements(array, std::move(ranges))));
  }
}

// Every rank reads all of these arrays, because they are small.
void StateReader::add_ranges(StateDict& dict, const SavedArray& array) {
  const bool is_own = array.sharing == Sharing::kOwn;
  std::map<std::size_t, std::pair<Range, std::vector<std::byte>>> found;
  const std::size_t size = size_of(array.dtype);
  const auto add = [&](int rank) {
    const auto pieces = arrays_.pieces(array.name, rank);
    const Buffer values = arrays_.read_all(array.name, rank);
    const auto* const bytes = static_cast<const std::byte*>(values.data());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (!now_[pieces[i].parameter]) continue;
      const Range range = placed(pieces.subspan(i, 1)).front();
      const std::vector<std::byte> value(bytes + i * size,
                                         bytes + (i + 1) * size);
      auto& kept = found[range.offset];
      if (kept.second.empty() || kept.second < value) kept = {range, value};
    }
  };
  attempt([&] {
    if (!is_own)
      add(-1);
    else if (same_ranks_)
      add(comm_.rank());
    else
      for (int r = 0; r < saved_world(); ++r) add(r);
  });
  Buffer values(found.size(), array.dtype);
  std::vector<std::int64_t> ranges;
  std::size_t i = 0;
  for (const auto& [offset, entry] : found) {
    std::memcpy(static_cast<std::byte*>(values.data()) + i++ * size,
                entry.second.data(), size);
    ranges.push_back(static_cast<std::int64_t>(entry.first.offset));
    ranges.push_back(static_cast<std::int64_t>(entry.first.size));
  }
  dict.put(array.name, std::move(values));
  dict.put(optim::ranges_key(array.name), ranges);
}

// New parameters keep the target's values.
void StateReader::add_parameters(StateDict& dict, const SavedArray& array,
                                 const optim::State& target) {
  Buffer values(layout_.parameters().size(), array.dtype);
  const optim::StateArray* const known = target.find(array.name);
  if (known != nullptr && known->size == values.size() &&
      known->dtype == array.dtype)
    known->read({0, values.size()}, values.view());
  attempt([&] {
    const Buffer saved = arrays_.read_all(array.name, 0);
    if (saved.size() != manifest_.parameters.size())
      throw Error(
          ErrorCode::kCorruptCheckpoint,
          fmt::format("'{}' must have a value for each of {} "
                      "parameters, got {}",
                      array.name, manifest_.parameters.size(), saved.size()));
    const std::size_t size = size_of(array.dtype);
    for (std::size_t p = 0; p < values.size(); ++p)
      if (matching_.saved[p])
        std::memcpy(static_cast<std::byte*>(values.data()) + p * size,
                    static_cast<const std::byte*>(saved.data()) +
                        *matching_.saved[p] * size,
                    size);
  });
  dict.put(array.name, std::move(values));
}

void StateReader::add_whole(StateDict& dict, const SavedArray& array) {
  const bool is_own = SavedArrays::is_per_rank(array) && same_ranks_;
  const int rank = is_own ? comm_.rank() : 0;
  Buffer values;
  attempt([&] { values = arrays_.read_all(array.name, rank); });
  dict.put(array.name, std::move(values));
}

// Adds the scalars. If the ranks differ from those that saved them, the largest
// value of each flag counts.
void StateReader::add_scalars(StateDict& dict) const {
  dict.put_all("", manifest_.scalars);
  dict.put_integer(optim::kSavedWorld, saved_world());
  const auto& all = manifest_.scalars_of_ranks;  // of every rank, or empty
  if (all.empty()) return;
  if (same_ranks_) {
    dict.put_all("", all[static_cast<std::size_t>(comm_.rank())]);
    return;
  }
  for (const StateDict& of_rank : all)
    for (const auto& [name, value] : of_rank.scalars()) {
      const auto kept = dict.scalars().find(name);
      if (kept == dict.scalars().end() || kept->second < value)
        dict.put_scalar(name, value);
    }
}

void StateReader::add_new_parameters(StateDict& dict) const {
  std::vector<std::int64_t> ranges;
  for (const Range& range : new_parameters()) {
    ranges.push_back(static_cast<std::int64_t>(range.offset));
    ranges.push_back(static_cast<std::int64_t>(range.size));
  }
  dict.put(optim::ranges_key(optim::kNewParameters), ranges);
}

void StateReader::add(StateDict& dict, const SavedArray& array,
                      const optim::State& target) {
  switch (array.axis) {
    case Axis::kElement:
      return add_elements(dict, array, target);
    case Axis::kRange:
      return add_ranges(dict, array);
    case Axis::kParameter:
      return add_parameters(dict, array, target);
    case Axis::kGroup:
    case Axis::kFree:
      return add_whole(dict, array);
  }
}

StateDict StateReader::state(const optim::State& target) {
  StateDict dict;
  same_ranks_ = are_same_ranks(target);
  add_scalars(dict);
  for (const SavedArray& array : manifest_.arrays) {
    // An array of a rank's own, unless its axis is kRange, is useful only to
    // that rank.
    const bool is_dropped = array.sharing == Sharing::kOwn &&
                            array.axis != Axis::kRange && !same_ranks_;
    if (!is_dropped) add(dict, array, target);
  }
  // Computes masters that were not saved from the weights.
  for (const optim::StateArray& array : target.arrays)
    if (array.is_parameters && !dict.has_array(array.name))
      dict.put(array.name,
               fill(array.size, array.dtype, array.sharing == Sharing::kSame,
                    masters(array.ranges, array.dtype)));
  if (matching_.has_new()) add_new_parameters(dict);
  arrays_.forget_chunk();
  return dict;
}

}  // namespace thinwire::checkpoint
