// SPDX-License-Identifier: Apache-2.0
// Checks that any text with a correct hash is refused with an Error, or read as
// a Manifest that is unchanged after writing and reading. An entry point for
// libFuzzer, which CMake's preset `fuzz` builds and
// tests/checkpoint/fuzz_test.cpp calls:
//   build/fuzz/bin/manifest_fuzz -max_total_time=300 CORPUS
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "checkpoint/format/manifest.h"
#include "thinwire/core/error.h"

extern "C" int manifest_fuzz(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire::checkpoint;
  std::string text(reinterpret_cast<const char*>(data), size);
  // A hash that does not match would end every attempt.
  if (const auto key = text.rfind("\"manifest_xxh3\"");
      key != std::string::npos)
    text.resize(key);
  text += manifest_end(text);
  Manifest manifest;
  try {
    manifest = parse_manifest(text, "f");
  } catch (const thinwire::Error&) {
    return 0;
  }
  const std::string written = write_manifest(manifest);
  if (write_manifest(parse_manifest(written, "f")) != written) std::abort();
  return 0;
}

#ifdef THINWIRE_FUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  return manifest_fuzz(data, size);
}
#endif
