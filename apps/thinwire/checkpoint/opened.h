// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/format/manifest.h"
#include "checkpoint/read/saved_arrays.h"
#include "checkpoint/read/weights.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/core/view.h"

namespace thinwire::apps::checkpoint_tool {

/// Values that are read piece by piece.
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
  [[nodiscard]] checkpoint::SavedArrays& arrays() { return arrays_; }

  /// Returns the parameter's number in the manifest, or nothing if it is not
  /// there.
  [[nodiscard]] std::optional<std::size_t> parameter(
      std::string_view name) const;
  [[nodiscard]] bool has_weight(std::string_view name) const {
    return weights_.find(name) != nullptr;
  }
  [[nodiscard]] Values weight(const std::string& name);
  /// Returns a parameter's values of an array by element.
  [[nodiscard]] Values elements(const checkpoint::SavedArray& array, int rank,
                                std::size_t parameter);
  /// Returns the mean over all ranks, which a load on another number of them
  /// gives.
  [[nodiscard]] Values mean(const checkpoint::SavedArray& array,
                            std::size_t parameter);
  /// Returns whether all of the parameter's elements are in files.
  [[nodiscard]] bool has_all(const checkpoint::SavedArray& array, int rank,
                             std::size_t parameter) const;

 private:
  std::string directory_;
  checkpoint::Manifest manifest_;
  checkpoint::SavedArrays arrays_;
  checkpoint::Weights weights_;
  std::map<std::string, std::size_t, std::less<>> numbers_;
};

/// Returns a text with all bits: two scalars are equal if their texts are.
[[nodiscard]] std::string text_of(const StateDict::Scalar& scalar);

}  // namespace thinwire::apps::checkpoint_tool
