// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/core/buffer.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/core/view.h"

namespace thinwire::optim {

/// What the values of an array speak of.
enum class Axis {
  kElement,    ///< One per element of `ranges`, which follow one another.
  kRange,      ///< One per range of `ranges`: a block, or a single element.
  kParameter,  ///< One per parameter of the layout.
  kGroup,      ///< One per group of the layout.
  kFree,       ///< Anything else: a history.
};

/// How the values of an array lie on the ranks; decides what becomes of them
/// on another number of ranks.
enum class Sharing {
  kSame,     ///< Every rank has the same.
  kSharded,  ///< Every element is on one rank.
  kOwn,      ///< Each rank has its own, of use to that rank only. A kRange one
             ///< becomes, on other ranks, the largest value of any rank.
  kMean,     ///< Each rank has its own; on other ranks all get the mean.
};

/// "element", "range", "parameter", "group", "free".
[[nodiscard]] std::string_view to_string(Axis axis) noexcept;
/// "same", "sharded", "own", "mean".
[[nodiscard]] std::string_view to_string(Sharing sharing) noexcept;

/// One array of an optimizer's state: described, not copied.
struct StateArray {
  /// Writes values [range.offset, range.end()) to `to`, which has this size
  /// and dtype. Several threads may read at once.
  using Read = std::function<void(Range range, View to)>;

  std::string name;
  DType dtype = DType::kFloat32;
  Axis axis = Axis::kFree;
  Sharing sharing = Sharing::kSame;
  std::size_t size = 0;  ///< Values on this rank.
  /// kElement, kRange: elements of the layout's flat array, none twice.
  std::vector<Range> ranges{};
  /// These are the parameters, or what they were rounded from where those are
  /// fp32: masters. Not to be written where the weights have the same bits.
  bool is_parameters = false;
  Read read{};

  /// Of an array in memory, which must outlive it.
  [[nodiscard]] static Read from(ConstView values);
  /// Of an array that Read keeps.
  [[nodiscard]] static Read from(Buffer&& values);
};

/// All that an optimizer keeps. Arrays are read from the optimizer itself, so a
/// State is valid until its next step.
class State {
 public:
  std::vector<StateArray> arrays;
  StateDict common;  ///< Scalars that are equal on all ranks.
  StateDict own;     ///< Scalars of this rank.
  /// Which elements of a kSharded array this rank has, also of arrays that are
  /// not there yet: its shard, or what it serves in a compressed exchange.
  std::vector<Range> shard;
  /// The same of the array kWorkerError: what this rank encodes.
  std::optional<std::vector<Range>> encoded;
  /// Scalars that say whose state in memory it is: its layout, its rank. They
  /// are in no checkpoint; see Optimizer::require_owner().
  StateDict owner;

  /// Arrays in memory, which must outlive this State. Each returns what it has
  /// added, valid until the next one.
  StateArray& add_elements(std::string name, Sharing sharing,
                           std::vector<Range> ranges, ConstView values);
  StateArray& add_ranges(std::string name, Sharing sharing,
                         std::vector<Range> ranges, ConstView values);
  void add_parameters(std::string name, ConstView values);  ///< kSame
  void add_groups(std::string name, ConstView values);      ///< kSame
  void add_free(std::string name, ConstView values);        ///< kSame

  /// Null if there is none.
  [[nodiscard]] const StateArray* find(std::string_view name) const noexcept;
};

/// Before the names of experts' arrays where the other parameters are those of
/// a low-bit optimizer. Parameters of a second dtype are kept as experts are.
inline constexpr const char* kOfExperts = "experts.";

/// The values of elements `range` of an array of elements, or of the array of
/// this name that experts have, in fp32, if every rank has all of it;
/// otherwise, and without such an array, nothing.
[[nodiscard]] std::optional<std::vector<float>> elements_of(
    const State& state, std::string_view array, Range range);

/// Puts in place what an adopt() has checked; cannot fail. Not called: nothing
/// changes.
using Adoption = std::function<void()>;
/// Lines for whoever reads a run's log.
using Notes = std::vector<std::string>;

/// The key under which a kRange array's ranges are in a StateDict: int64, the
/// offset and the size of each, one after the other, ascending.
[[nodiscard]] std::string ranges_key(std::string_view array);

/// In a StateDict, an array of Axis::kRange without values: parameters that the
/// saved run did not have. Their values in all other arrays are 0.
inline constexpr const char* kNewParameters = "new_parameters";

/// In a StateDict, an integer: how many ranks saved it, where that is known.
inline constexpr const char* kSavedWorld = "saved_world";

/// Integers of a state by host, missing where hosts are flat: how many ranks
/// share a host, a checksum of which, and this rank's host. An array of
/// Sharing::kMean then lies in pieces on the ranks of each host, which together
/// have one host's values, or is the same on all of them.
inline constexpr const char* kRanksPerHost = "ranks_per_host";
inline constexpr const char* kHostLayout = "host_layout";
inline constexpr const char* kHost = "host";

/// The array of what this rank's encoder has left over, Sharing::kMean.
inline constexpr const char* kWorkerError = "worker_error";

/// Returns a copy of all of it: arrays, those of kRange with their ranges, and
/// all scalars under their names.
[[nodiscard]] StateDict copy_of(const State& state);

}  // namespace thinwire::optim
