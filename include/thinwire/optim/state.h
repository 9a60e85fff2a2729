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

/// Unit to which each value of an array belongs.
enum class Axis {
  kElement,  ///< One value per element of `ranges`, range by range.
  kRange,    ///< One value per range of `ranges`: a block, or a single element.
  kParameter,  ///< One value per parameter of the layout.
  kGroup,      ///< One value per group of the layout.
  kFree,       ///< No unit, for example a history.
};

/// Distribution of an array's values over the ranks, which determines its
/// values on another number of ranks.
enum class Sharing {
  kSame,     ///< Every rank has the same values.
  kSharded,  ///< Every element is on one rank.
  /// Each rank has different values, which only that rank can use. If the
  /// number of ranks changes, a kRange array becomes the largest value of any
  /// rank.
  kOwn,
  /// Each rank has different values. If the number of ranks changes, all ranks
  /// get the mean, or for a kFree array rank 0's values.
  kMean,
};

/// Returns "element", "range", "parameter", "group" or "free".
[[nodiscard]] std::string_view to_string(Axis axis) noexcept;
/// Returns "same", "sharded", "own" or "mean".
[[nodiscard]] std::string_view to_string(Sharing sharing) noexcept;

/// Description of one array of an optimizer's state, without a copy.
struct StateArray {
  /// Writes values [range.offset, range.end()) to `to`, which has this size
  /// and dtype. Several threads may read at once.
  using Read = std::function<void(Range range, View to)>;

  std::string name;
  DType dtype = DType::kFloat32;
  Axis axis = Axis::kFree;
  Sharing sharing = Sharing::kSame;
  std::size_t size = 0;  ///< Number of values on this rank.
  /// Ranges of the layout's flat array, without overlap, for kElement and
  /// kRange.
  std::vector<Range> ranges{};
  /// Whether these are the parameters or, if those are 16-bit, their fp32
  /// masters. A checkpoint omits them if its weights have the same bits.
  bool is_parameters = false;
  Read read{};

  /// Returns a Read of an array in memory, which must outlive it.
  [[nodiscard]] static Read from(ConstView values);
  /// Returns a Read that owns the array.
  [[nodiscard]] static Read from(Buffer&& values);
};

/// All data that an optimizer keeps. Arrays are read from the optimizer itself,
/// so a State is valid until its next step.
class State {
 public:
  std::vector<StateArray> arrays;
  StateDict common;  ///< Scalars that are equal on all ranks.
  StateDict own;     ///< Scalars of this rank.
  /// Whether local steps may turn kSame arrays into kMean ones. If not, a saved
  /// kMean array becomes the ranks' mean where this State has kSame or
  /// kSharded.
  bool has_local_steps = false;
  /// Elements of kSharded arrays that this rank has, including arrays that do
  /// not exist yet. They are its shard, or the elements that it serves in a
  /// compressed exchange.
  std::vector<Range> shard;
  /// Elements of the array kWorkerError on this rank, which are those that it
  /// encodes.
  std::optional<std::vector<Range>> encoded;
  /// Scalars that identify the owner of a state in memory: its layout and its
  /// rank. Checkpoints do not contain them; see Optimizer::require_owner().
  StateDict owner;

  /// Add arrays in memory, which must outlive this State. Return the added
  /// array, which is valid until the next one is added.
  StateArray& add_elements(std::string name, Sharing sharing,
                           std::vector<Range> ranges, ConstView values);
  StateArray& add_ranges(std::string name, Sharing sharing,
                         std::vector<Range> ranges, ConstView values);
  /// Adds a kSame array.
  void add_parameters(std::string name, ConstView values);
  void add_groups(std::string name, ConstView values);  ///< Adds a kSame array.
  void add_free(std::string name, ConstView values);    ///< Adds a kSame array.

  /// Returns the array of this name, or null if there is none.
  [[nodiscard]] const StateArray* find(std::string_view name) const noexcept;
};

/// Prefix of the names of experts' arrays if the other parameters have a
/// low-bit optimizer. Parameters of a second dtype are kept like experts.
inline constexpr const char* kOfExperts = "experts.";

/// Returns elements `range` of an array of elements, or of the experts' array
/// of this name, in fp32. Returns nothing if there is no such array, or if not
/// every rank has all of it.
[[nodiscard]] std::optional<std::vector<float>> elements_of(
    const State& state, std::string_view array, Range range);

/// Applies a state that an adopt() has checked; it cannot fail. Nothing changes
/// until it is called.
using Adoption = std::function<void()>;
/// Lines for the log of a run.
using Notes = std::vector<std::string>;

/// Returns the key of a kRange array's ranges in a StateDict. They are int64:
/// the offset and the size of each range in turn, ascending.
[[nodiscard]] std::string ranges_key(std::string_view array);

/// Key in a StateDict of an Axis::kRange array without values. Its ranges are
/// parameters that the saved run did not have, whose values in all other arrays
/// are 0.
inline constexpr const char* kNewParameters = "new_parameters";

/// Key in a StateDict of the number of ranks that saved it, if known.
inline constexpr const char* kSavedWorld = "saved_world";

/// Keys of the integers of a hierarchical state: the number of ranks per host,
/// a checksum of the hosts' ranks, and this rank's host. They are missing if
/// hosts are flat. If they exist, each host has one set of values of a
/// Sharing::kMean array. These are either split over the host's ranks or equal
/// on all of them.
inline constexpr const char* kRanksPerHost = "ranks_per_host";
inline constexpr const char* kHostLayout = "host_layout";
inline constexpr const char* kHost = "host";

/// Name of the array of this rank's encoder residuals, with Sharing::kMean.
inline constexpr const char* kWorkerError = "worker_error";

/// Returns a copy of all arrays and of all scalars under their names. kRange
/// arrays include their ranges.
[[nodiscard]] StateDict copy_of(const State& state);

}  // namespace thinwire::optim
