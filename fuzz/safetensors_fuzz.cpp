// SPDX-License-Identifier: Apache-2.0
// Checks that any bytes are either refused with an Error, or are a header whose
// tensors lie inside the file. The header that place_tensors() makes of them is
// read again. An entry point for libFuzzer, which CMake's preset `fuzz` builds
// and tests/checkpoint/fuzz_test.cpp calls:
//   build/fuzz/bin/safetensors_fuzz -max_total_time=300 CORPUS
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "checkpoint/format/safetensors.h"
#include "thinwire/core/error.h"

namespace {

using namespace thinwire::checkpoint;

void check(std::string_view file, Writer writer) {
  SafetensorsHeader header;
  try {
    const std::uint64_t length =
        header_bytes(file.substr(0, 8), file.size(), "f");
    if (length > file.size()) std::abort();
    header = parse_header(file.substr(8, length), file.size(), "f", writer);
  } catch (const thinwire::Error&) {
    return;
  }
  std::uint64_t end = header.data_begin;
  for (const TensorEntry& tensor : header.tensors) {
    if (tensor.begin != end) std::abort();
    end = tensor.end();
  }
  if (end != file.size()) std::abort();
  SafetensorsHeader placed;
  try {
    placed = place_tensors(header.tensors, header.metadata);
  } catch (const thinwire::Error&) {
    return;  // a name in the metadata that the library would not write
  }
  const std::string text = write_header(placed);
  const SafetensorsHeader again =
      parse_header(std::string_view(text).substr(8), placed.file_bytes, "f");
  if (write_header(again) != text) std::abort();
}

}  // namespace

extern "C" int safetensors_fuzz(const std::uint8_t* data, std::size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  check(file, Writer::kThis);
  check(file, Writer::kOther);
  return 0;
}

#ifdef THINWIRE_FUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  return safetensors_fuzz(data, size);
}
#endif
