// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/optim/update_rule.h"

/// Functions on saved states that optimizers share. All throw
/// Error(kCorruptCheckpoint) with the name of the part that does not fit.
namespace thinwire::optim {

// ---- values that a run can continue with
/// A saved value with which no run can continue. Another checkpoint of the same
/// run may have a usable value.
struct UnusableValue : Error {
  explicit UnusableValue(const std::string& text)
      : Error(ErrorCode::kCorruptCheckpoint, text) {}
};
/// Largest magnitude of a usable value.
inline constexpr double kMostMagnitude = 1e30;
enum class Sign { kAny, kNotNegative, kPositive };
/// Returns the index of the first of `values` that is not finite, exceeds
/// kMostMagnitude in magnitude, or has the wrong sign. Accepts all integers.
[[nodiscard]] std::optional<std::size_t> first_unusable(ConstView values,
                                                        Sign sign = Sign::kAny);
/// Throws UnusableValue with `name`, the first unusable element and its value,
/// if there is one. `first` is the element number of values[0].
void require_usable(std::string_view name, ConstView values,
                    Sign sign = Sign::kAny, std::size_t first = 0);
/// Returns a saved scalar under the same condition.
[[nodiscard]] double saved_real(const StateDict& state, std::string_view name,
                                Sign sign);

/// Largest count, so that sums and products of counts cannot wrap around.
inline constexpr std::int64_t kMostCount = std::int64_t{1} << 53;
/// Throws UnusableValue unless `count` is in 0 .. kMostCount.
void require_count(std::string_view name, std::int64_t count);
/// Returns the saved integer `name`, which must be a valid count.
[[nodiscard]] std::int64_t saved_count(const StateDict& state,
                                       std::string_view name);

/// Counters that every optimizer has.
struct StepCounts {
  std::int64_t steps = 0;
  std::int64_t skipped = 0;

  void save(StateDict& state) const;
  [[nodiscard]] static StepCounts load(const StateDict& state);
};

// ---- owners of states
/// Returns a state with the scalar `layout`.
[[nodiscard]] StateDict layout_owner(const ParameterLayout& layout);
void require_layout(const StateDict& state, const ParameterLayout& layout);
/// Requires that the state has this text as `key`.
void require_text(const StateDict& state, const char* key,
                  std::string_view own);
/// Requires a state of this rule or of its 1-bit optimizer before the freeze,
/// which has the same arrays.
void require_rule(const StateDict& state, std::string_view rule);
/// Throws the Error that refuses a state of another optimizer.
[[noreturn]] void refuse_optimizer(std::string_view saved,
                                   std::string_view own);

// ---- hosts: in hierarchical mode a host's ranks are one worker
/// Adds the ranks that share a host to a state, or nothing if the exchange is
/// flat.
void add_hosts(State& state, const comm::Hosts& hosts);
/// Returns the saved number of ranks per host, or 1 if the state has none.
[[nodiscard]] std::int64_t saved_ranks_per_host(const StateDict& state);

// ---- an optimizer that has nothing but a rule and counts
[[nodiscard]] State rule_state(const UpdateRule& rule,
                               const StepCounts& counts);
[[nodiscard]] Optimizer::Adoption adopt_rule_state(UpdateRule& rule,
                                                   StepCounts& counts,
                                                   StateDict state);

// ---- arrays
/// Returns a copy whose arrays an optimizer may take and keep.
[[nodiscard]] StateDict copy_to_adopt(const StateDict& state);
/// Copies the arrays of `first` that the state lacks.
void put_missing(StateDict& state, const State& first);
/// Takes an array of floats, which will be kept in `dtype`. A 16-bit array is
/// widened. An fp32 array is rounded if the state allows it by the integer
/// allow_rounding = 1. An array without elements may be missing. All values
/// must be usable.
[[nodiscard]] Buffer take_floats(StateDict& state, std::string_view name,
                                 DType dtype, std::size_t size,
                                 Sign sign = Sign::kAny);
/// Returns a copy of the values in another dtype. Floating-point values must be
/// usable.
template <class T>
[[nodiscard]] std::vector<T> saved_values(const StateDict& state,
                                          std::string_view name,
                                          std::size_t size,
                                          Sign sign = Sign::kAny) {
  const ConstView array = state.array(name, dtype_of<T>, size);
  if constexpr (std::is_floating_point_v<T>) require_usable(name, array, sign);
  const auto values = array.template as<T>();
  return {values.begin(), values.end()};
}
/// Returns the learning rates of a saved state. Throws
/// Error(kCorruptCheckpoint) unless there is one valid value per group.
[[nodiscard]] inline std::vector<double> saved_learning_rates(
    const StateDict& state, std::size_t num_groups) {
  return saved_values<double>(state, "learning_rates", num_groups,
                              Sign::kNotNegative);
}
/// Adds an array of Axis::kRange whose ranges are single elements.
void add_to_elements(State& state, std::string name, Sharing sharing,
                     std::span<const std::size_t> elements, Buffer&& values);
/// Returns the ranges of an Axis::kRange array, which must be ascending and
/// within `num_elements`.
[[nodiscard]] std::vector<Range> saved_ranges(const StateDict& state,
                                              std::string_view array,
                                              std::size_t num_elements);
/// Returns the elements of an array whose ranges are single elements.
[[nodiscard]] std::vector<std::size_t> saved_elements(const StateDict& state,
                                                      std::string_view array,
                                                      std::size_t num_elements);

}  // namespace thinwire::optim
