// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "optim/saved_state.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// Description of a scalar in a state.
struct ScalarPart {
  const char* name;
  bool is_own = false;  ///< Whether each rank has a different value.
  /// Value for a saved state that lacks it. If empty, a state must have it.
  std::optional<std::int64_t> missing{};
};

/// Description of an array in a state. `sharing` determines its values on
/// another number of ranks.
struct ArrayPart {
  const char* name;
  std::vector<Range> ranges{};  ///< For arrays of elements.
  Sharing sharing = Sharing::kSame;
  DType dtype = DType::kFloat32;  ///< The dtype that elements() converts to.
  Sign sign = Sign::kAny;
  bool is_parameters = false;
};

/// List of the parts of a state. The same list writes them to a State and takes
/// them from a saved one. When a saved part is listed, it is checked, and
/// Error(kCorruptCheckpoint) is thrown if it does not fit. Nothing changes
/// until the function that adoption() returns is called.
class StateParts {
 public:
  explicit StateParts(State& to) noexcept : to_(&to) {}
  explicit StateParts(StateDict& from) noexcept : from_(&from) {}

  /// Returns the state from which parts are taken, or null if parts are being
  /// saved.
  [[nodiscard]] const StateDict* saved() const noexcept { return from_; }
  /// Returns whether the saved state has this array, or `own` if parts are
  /// being saved.
  [[nodiscard]] bool has(std::string_view array, bool own) const {
    return from_ != nullptr ? from_->has_array(array) : own;
  }

  /// Throws unless the saved state has this array, or elements() has already
  /// taken it.
  void require(const char* array) const;

  /// Lists an integer or a bool. Returns the saved value, or `value` if parts
  /// are being saved.
  template <class T>
  T integer(const ScalarPart& part, T& value) {
    const auto saved = static_cast<T>(saved_or(part, std::int64_t{value}));
    set(value, T{saved});
    return saved;
  }
  /// Lists an integer in 0 .. kMostCount.
  std::int64_t count(const ScalarPart& part, std::int64_t& value) {
    const std::int64_t saved = integer(part, value);
    if (from_ != nullptr) require_count(part.name, saved);
    return saved;
  }

  /// Lists an array with one value per element of `part.ranges`.
  void elements(const ArrayPart& part, Buffer& values);
  /// Lists `size` values that belong to groups, to parameters, or to neither.
  template <class T>
  void values(Axis axis, const ArrayPart& part, std::vector<T>& values,
              std::size_t size) {
    if (from_ == nullptr) return save(part, axis, ConstView(std::span(values)));
    set(values, saved_values<T>(*from_, part.name, size, part.sign));
  }

  /// Lists a part that `write(State&)` saves. `take(StateDict&)` returns its
  /// values, and `set(values)` moves them into place.
  template <class Write, class Take, class Set>
  void add(Write write, Take take, Set set) {
    if (from_ == nullptr) return write(*to_);
    using Taken = std::invoke_result_t<Take, StateDict&>;
    then([set, taken = std::make_shared<Taken>(take(*from_))] {
      set(std::move(*taken));
    });
  }
  /// Sets `value` after the parts listed before it, unless parts are being
  /// saved.
  template <class T>
  void set(T& value, T&& saved) {
    if (from_ == nullptr) return;
    then([&value, kept = std::make_shared<T>(std::move(saved))] {
      value = std::move(*kept);
    });
  }
  /// Calls `body` after the parts listed before it are set, unless parts are
  /// being saved.
  void then(Adoption body) {
    if (from_ != nullptr) sets_.push_back(std::move(body));
  }
  /// Returns a function that sets all parts in order. It may be called once.
  [[nodiscard]] Adoption adoption() {
    return [sets = std::move(sets_)] {
      for (const Adoption& set : sets) set();
    };
  }

 private:
  void save(const ArrayPart& part, Axis axis, ConstView values);
  std::int64_t saved_or(const ScalarPart& part, std::int64_t value);

  State* to_ = nullptr;
  StateDict* from_ = nullptr;
  std::vector<std::string_view> taken_;  // names of the arrays of elements
  std::vector<Adoption> sets_;
};

}  // namespace thinwire::optim
