// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

#include "support/handle.h"

namespace thinwire::python {

/// Refuses calls while another call is running, in this or another thread. The
/// library's objects may be used by one thread at a time, and without the GIL
/// nothing else checks this.
class OneCaller {
 public:
  /// Registers a call while it runs. Throws Error(kFailedPrecondition) if
  /// another call is running. `name` is for the message.
  class Call {
   public:
    Call(OneCaller& caller, const char* name) : caller_(caller) {
      if (caller.is_busy_.exchange(true))
        refuse(fmt::format(
            "{}: another call of this object has not returned yet", name));
    }
    ~Call() { caller_.is_busy_ = false; }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    OneCaller& caller_;
  };

 private:
  std::atomic<bool> is_busy_ = false;
};

/// Calls body(parts) without the GIL, as the only call of the object at that
/// time.
template <class Parts, class Body>
auto call(const Handle<Parts>& self, const char* name, Body&& body) {
  return without_gil(self.get(), [&](Parts& parts) {
    const OneCaller::Call only(parts.caller, name);
    return body(parts);
  });
}

}  // namespace thinwire::python
