// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "bindings.h"
#include "thinwire/checkpoint/options.h"

namespace thinwire::python {

/// _core.SaveOptions, whose `progress` is a Python object, or None.
class SaveSettings : public checkpoint::SaveOptions {
 public:
  [[nodiscard]] const nb::object& callback() const noexcept {
    return callback_;
  }
  /// Throws TypeError if the object cannot be called.
  void call_back(nb::object callback);
  /// Returns the options as the library needs them; for null, the defaults.
  [[nodiscard]] static checkpoint::SaveOptions get(const SaveSettings* self);

 private:
  nb::object callback_ = nb::none();
};

/// _core.Extra. Not copyable, because its arrays are not, which the type of a
/// StateDict does not show.
struct Additions : checkpoint::Extra {
  Additions() = default;
  Additions(const Additions&) = delete;
  Additions& operator=(const Additions&) = delete;

  /// Returns `self`, or no additions for null.
  [[nodiscard]] static const checkpoint::Extra& get(const Additions* self);
};

}  // namespace thinwire::python
