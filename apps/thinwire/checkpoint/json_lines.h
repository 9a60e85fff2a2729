// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iostream>
#include <nlohmann/json.hpp>

#include "thinwire/checkpoint/inspect.h"

namespace thinwire::apps::checkpoint_tool {

using OrderedJson = nlohmann::ordered_json;

[[nodiscard]] OrderedJson to_json(const checkpoint::Description& description);

/// Prints one object on one line; bytes that are not UTF-8 are replaced.
inline void print_line(const OrderedJson& json) {
  std::cout << json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace)
            << '\n';
}

}  // namespace thinwire::apps::checkpoint_tool
