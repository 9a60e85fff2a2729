// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "bindings.h"
#include "thinwire/checkpoint/options.h"

namespace thinwire::python {

/// _core.SaveOptions: `progress` is a Python object, or None.
class SaveSettings : public checkpoint::SaveOptions {
 public:
  [[nodiscard]] const nb::object& callback() const noexcept {
    return callback_;
  }
  /// Throws TypeError for what cannot be called.
  void call_back(nb::object callback);
  /// As the library takes them; those of null are the defaults.
  [[nodiscard]] static checkpoint::SaveOptions get(const SaveSettings* self);

 private:
  nb::object callback_ = nb::none();
};

/// _core.Extra. Its arrays are not copied, which a StateDict does not say of
/// itself.
struct Additions : checkpoint::Extra {
  Additions() = default;
  Additions(const Additions&) = delete;
  Additions& operator=(const Additions&) = delete;

  /// Those of null are none.
  [[nodiscard]] static const checkpoint::Extra& get(const Additions* self);
};

}  // namespace thinwire::python
