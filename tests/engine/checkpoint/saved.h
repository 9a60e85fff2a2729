// SPDX-License-Identifier: Apache-2.0
// A checkpoint read without an Engine.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/read/saved_arrays.h"
#include "checkpoint/read/verified_file.h"
#include "checkpoint/read/weights.h"
#include "thinwire/kernels/cast.h"

// `test::` means these and what all modules share.
namespace thinwire::test {}
namespace thinwire::engine::test {
using namespace thinwire::test;  // NOLINT(google-build-using-namespace)

/// A checkpoint of any number of ranks; values lie in the parameters' order.
class Saved {
 public:
  explicit Saved(const std::string& directory)
      : directory_(directory),
        manifest_(checkpoint::read_manifest(checkpoint::posix_file_system(),
                                            directory)),
        arrays_(checkpoint::posix_file_system(), directory_, manifest_),
        weights_(checkpoint::posix_file_system(), directory_, manifest_) {}

  [[nodiscard]] const checkpoint::Manifest& manifest() const noexcept {
    return manifest_;
  }
  [[nodiscard]] checkpoint::SavedArrays& arrays() noexcept { return arrays_; }
  [[nodiscard]] checkpoint::Weights& weights() noexcept { return weights_; }
  /// Null if the manifest has no array of this name.
  [[nodiscard]] const checkpoint::SavedArray* find(
      std::string_view name) const noexcept {
    const auto found = std::ranges::find(manifest_.arrays, name,
                                         &checkpoint::SavedArray::name);
    return found == manifest_.arrays.end() ? nullptr : &*found;
  }

  /// An array that is not each rank's own, or that of one rank.
  [[nodiscard]] std::vector<float> array(const std::string& name,
                                         int rank = -1) {
    const Buffer values = arrays_.read_all(name, rank);
    std::vector<float> result(values.size());
    kernels::convert(values.view(), result);
    return result;
  }
  /// The weights of all parameters, widened.
  [[nodiscard]] std::vector<float> params() {
    std::vector<float> all;
    for (const auto& parameter : manifest_.parameters) {
      const auto& tensor = *weights_.find(parameter.name);
      Buffer values(tensor.bytes / size_of(tensor.type.dtype),
                    tensor.type.dtype);
      weights_.read(parameter.name, values.view());
      std::vector<float> widened(values.size());
      kernels::convert(std::as_const(values).view(), widened);
      all.insert(all.end(), widened.begin(), widened.end());
    }
    return all;
  }
  /// Returns the values from which the weights were rounded.
  [[nodiscard]] std::vector<float> masters() {
    for (const auto& array_of : manifest_.arrays)
      if (array_of.is_parameters && arrays_.num_values(array_of.name, -1) > 0)
        return array(array_of.name);
    return params();
  }

 private:
  std::string directory_;
  checkpoint::Manifest manifest_;
  checkpoint::SavedArrays arrays_;
  checkpoint::Weights weights_;
};

}  // namespace thinwire::engine::test
