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

/// Description of a scalar of a state.
struct ScalarPart {
  const char* name;
  bool is_own = false;  ///< Whether each rank has its own.
  /// Value if a saved state lacks it. Without one, a state must have it.
  std::optional<std::int64_t> missing{};
};

/// Description of an array of a state. `sharing` determines the result on
/// another number of ranks.
struct ArrayPart {
  const char* name;
  std::vector<Range> ranges{};  ///< For arrays of elements.
  Sharing sharing = Sharing::kSame;
  DType dtype = DType::kFloat32;  ///< In which elements() takes it.
  Sign sign = Sign::kAny;
  bool is_parameters = false;
};

/// List of the parts of a state. The same list writes them into a State and
/// takes them out of a saved one. Taking checks each part where the list names
/// it and throws Error(kCorruptCheckpoint). Nothing changes before the function
/// that adoption() returns is called.
class StateParts {
 public:
  explicit StateParts(State& to) noexcept : to_(&to) {}
  explicit StateParts(StateDict& from) noexcept : from_(&from) {}

  /// Returns the state that parts are taken out of, or null if they are saved.
  [[nodiscard]] const StateDict* saved() const noexcept { return from_; }
  /// Returns whether the saved state has this array. Returns `own` if parts are
  /// saved.
  [[nodiscard]] bool has(std::string_view array, bool own) const {
    return from_ != nullptr ? from_->has_array(array) : own;
  }

  /// Throws unless the saved state has this array, or elements() has taken it.
  void require(const char* array) const;

  /// Lists an integer or a bool. Returns the saved value, or `value` if parts
  /// are saved.
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
  /// Lists `size` values per group or parameter, or of no unit.
  template <class T>
  void values(Axis axis, const ArrayPart& part, std::vector<T>& values,
              std::size_t size) {
    if (from_ == nullptr) return save(part, axis, ConstView(std::span(values)));
    set(values, saved_values<T>(*from_, part.name, size, part.sign));
  }

  /// Lists a part that `write(State&)` saves, and whose values
  /// `take(StateDict&)` returns and `set(values)` moves into place.
  template <class Write, class Take, class Set>
  void add(Write write, Take take, Set set) {
    if (from_ == nullptr) return write(*to_);
    using Taken = std::invoke_result_t<Take, StateDict&>;
    then([set, taken = std::make_shared<Taken>(take(*from_))] {
      set(std::move(*taken));
    });
  }
  /// Sets `value` after the parts before it, unless parts are saved.
  template <class T>
  void set(T& value, T&& saved) {
    if (from_ == nullptr) return;
    then([&value, kept = std::make_shared<T>(std::move(saved))] {
      value = std::move(*kept);
    });
  }
  /// Calls `body` after the parts before it are set, unless parts are saved.
  void then(Adoption body) {
    if (from_ != nullptr) sets_.push_back(std::move(body));
  }
  /// Returns a function that sets all parts in order, once.
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
  std::vector<std::string_view> taken_;  // arrays of elements
  std::vector<Adoption> sets_;
};

}  // namespace thinwire::optim
