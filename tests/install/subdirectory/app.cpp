// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/parameter_layout.h"

int main() {
  const auto layout =
      thinwire::ParameterLayout::of({{.name = "a", .shape = {2, 3}}});
  return layout.size() == 6 ? 0 : 1;
}
