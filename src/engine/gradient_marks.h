// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/view.h"

namespace thinwire::engine {

/// Detects external writes to gradients or parameters between a window's last
/// backward and its step. It compares one element per parameter. This is the
/// first whose gradient is finite and not 0, because scaling changes its bits.
class GradientMarks {
 public:
  /// `layout` must outlive this object.
  explicit GradientMarks(const ParameterLayout& layout);

  /// Records one element of each parameter. If `grads` is empty, only
  /// parameters are compared, by their first element.
  void remember(ConstView params, ConstView grads);
  /// Discards the record.
  void forget() { marks_.clear(); }

  struct Change {
    std::size_t parameter = 0;
    bool is_of_gradient = false;
  };
  /// Returns the first parameter that differs from the record. Gradients are
  /// compared before parameters, because callers that step by hand often scale
  /// first.
  [[nodiscard]] std::optional<Change> change(ConstView params,
                                             ConstView grads) const;

 private:
  struct Mark {
    std::size_t parameter = 0;
    std::size_t element = 0;  // of the flat arrays
    bool has_gradient = false;
    std::uint32_t param = 0;  // bits
    std::uint32_t gradient = 0;
  };

  const ParameterLayout& layout_;
  std::vector<Mark> marks_;
  std::vector<std::size_t> last_;  // element of the last record, per parameter
};

}  // namespace thinwire::engine
