// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

namespace thinwire::test {

/// Makes this process another user for its lifetime if it is root, who may read
/// and write anywhere.
class Nobody {
 public:
  Nobody() : was_(::geteuid()) {
    constexpr uid_t kNobody = 65534;
    if (was_ == 0 && ::seteuid(kNobody) != 0) ADD_FAILURE() << "seteuid";
  }
  ~Nobody() {
    if (was_ == 0 && ::seteuid(was_) != 0) ADD_FAILURE() << "seteuid";
  }
  Nobody(const Nobody&) = delete;
  Nobody& operator=(const Nobody&) = delete;

 private:
  uid_t was_;
};

}  // namespace thinwire::test
