// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>

#include "thinwire/core/buffer.h"
#include "thinwire/core/view.h"

namespace thinwire {

/// Named flat arrays and scalars that an optimizer saves and loads. The class
/// is independent of optimizers and files. Keys are those that PyTorch users
/// expect: exp_avg, exp_avg_sq, worker_error, server_error, step.
class StateDict {
 public:
  using Scalar = std::variant<std::int64_t, double, std::string>;

  /// Copies the array, and replaces an array of the same name.
  void put(const std::string& name, ConstView values);
  /// Moves the array in, and replaces an array of the same name.
  void put(const std::string& name, Buffer&& values);
  void put_integer(const std::string& name, std::int64_t value);
  void put_real(const std::string& name, double value);
  void put_text(const std::string& name, std::string value);
  void put_scalar(const std::string& name, Scalar value);

  /// Copies all entries of `other`, with `prefix` before their names.
  void put_all(const std::string& prefix, const StateDict& other);
  /// Returns copies of the entries whose names have this prefix, and removes it
  /// from the names.
  [[nodiscard]] StateDict part(std::string_view prefix) const;

  [[nodiscard]] bool has_array(std::string_view name) const;
  [[nodiscard]] bool has_scalar(std::string_view name) const;

  /// Return a value. Each throws Error(kCorruptCheckpoint) with the key if the
  /// value is missing or of another kind.
  [[nodiscard]] ConstView array(std::string_view name) const;
  [[nodiscard]] std::int64_t integer(std::string_view name) const;
  [[nodiscard]] double real(std::string_view name) const;
  [[nodiscard]] const std::string& text(std::string_view name) const;

  /// Returns array(name). Throws Error(kCorruptCheckpoint) with key, dtype and
  /// size if the dtype or size differs.
  [[nodiscard]] ConstView array(std::string_view name, DType dtype,
                                std::size_t size) const;

  /// Moves an array out. Throws like array(name).
  [[nodiscard]] Buffer take(std::string_view name);
  /// Removes an array or a scalar, if there is one.
  void erase(std::string_view name);

  [[nodiscard]] const std::map<std::string, Buffer, std::less<>>& arrays()
      const noexcept {
    return arrays_;
  }
  [[nodiscard]] const std::map<std::string, Scalar, std::less<>>& scalars()
      const noexcept {
    return scalars_;
  }

 private:
  std::map<std::string, Buffer, std::less<>> arrays_;
  std::map<std::string, Scalar, std::less<>> scalars_;
};

}  // namespace thinwire
