// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "checkpoint/format/manifest.h"
#include "checkpoint/read/saved_arrays.h"
#include "checkpoint/read/weights.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/view.h"

namespace thinwire::apps::checkpoint_tool {

/// Values that are read in pieces.
struct Values {
  DType dtype = DType::kFloat32;
  std::size_t size = 0;
  std::function<void(Range range, View to)> read{};
};

/// A checkpoint, or the newest one of a ROOT, with all its files open.
class Opened {
 public:
  explicit Opened(const std::string& path);

  [[nodiscard]] const std::string& directory() const { return directory_; }
  [[nodiscard]] const checkpoint::Manifest& manifest() const {
    return manifest_;
  }

  [[nodiscard]] Values weight(const std::string& name);
  /// Returns a parameter's values of an array by element, unless it differs
  /// between ranks.
  [[nodiscard]] Values elements(const checkpoint::SavedArray& array,
                                std::size_t parameter);
  /// Returns whether files have the array's values of all the parameter's
  /// elements.
  [[nodiscard]] bool has_all(const checkpoint::SavedArray& array,
                             std::size_t parameter) const;

 private:
  std::string directory_;
  checkpoint::Manifest manifest_;
  checkpoint::SavedArrays arrays_;
  checkpoint::Weights weights_;
};

}  // namespace thinwire::apps::checkpoint_tool
