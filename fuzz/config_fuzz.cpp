// SPDX-License-Identifier: Apache-2.0
// Checks that any text is either refused with an Error, or read as a Config
// that is unchanged after writing and reading. An entry point for libFuzzer,
// which CMake's preset `fuzz` builds and tests/config/errors_test.cpp calls:
//   build/fuzz/bin/config_fuzz -max_total_time=300 CORPUS fuzz/config_corpus
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/config/config.h"
#include "thinwire/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  using thinwire::config::Config;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::vector<std::string> taken{"train_gpt"};
  Config config;
  try {
    config = Config::from_json(text, nullptr, {}, taken);
  } catch (const thinwire::Error&) {
    return 0;
  }
  try {
    config.validate(4);
  } catch (const thinwire::Error&) {
    // Refused for the number of ranks, or for a feature that is planned.
  }
  const std::string written = config.to_json();
  const Config again = Config::from_json(written, nullptr, {}, taken);
  if (!(again == config) || again.to_json() != written) std::abort();
  for (const std::int64_t applied : {0, 1, 1000})
    if (!(config.schedule.rate(1, applied) >= 0)) std::abort();
  return 0;
}
