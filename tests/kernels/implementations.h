// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/kernel_cases.h"

/// Parts of tests that state results of kernels without the reference. Every
/// example is held against `ref` and against the kernels for every target of
/// this machine.
namespace thinwire::test {

/// `Kernels` has pointers to some kernels.
template <class Kernels>
struct Impl : Kernels {
  std::string name;
  std::string target;  ///< "" for `ref`.
};

template <class Kernels>
class ValuesTest : public ::testing::TestWithParam<Impl<Kernels>> {
 protected:
  const Impl<Kernels>& impl = this->GetParam();

 private:
  ForcedTarget forced_{this->GetParam().target};
};

template <class Kernels>
auto implementations(const Kernels& reference, const Kernels& fast) {
  std::vector<Impl<Kernels>> impls = {{reference, "ref", ""}};
  for (const std::string& target : kernels::cpu_targets())
    impls.push_back({fast, target, target});
  return ::testing::ValuesIn(impls);
}

template <class Kernels>
std::string impl_name(const ::testing::TestParamInfo<Impl<Kernels>>& info) {
  return info.param.name;
}

}  // namespace thinwire::test
