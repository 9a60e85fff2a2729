// SPDX-License-Identifier: Apache-2.0
// What others_test.py asks of this library:
//   format_program tiny DIR WORLD STEP OFFSET [masters]  writes a checkpoint
//   format_program full ROOT WORLD SEEN        writes one as training does
//   format_program files DIR                   writes safetensors files
//   format_program read PATH...                a line of JSON for each: its
//                                              weights, or why it is refused
#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/read/weights.h"
#include "checkpoint/tiny_checkpoint.h"
#include "thinwire/core/buffer.h"

namespace {

using namespace thinwire;
using namespace thinwire::checkpoint;
using nlohmann::json;

void write_files(const std::string& directory) {
  int number = 0;
  const auto write =
      [&](const std::vector<checkpoint::test::Content>& contents) {
        checkpoint::test::write_file(
            fmt::format("{}/{}.safetensors", directory, number++),
            checkpoint::test::safetensors_of(contents));
      };
  write({});
  for (const std::size_t size : {0, 1, 7, 31, 32, 33, 1023, 1024, 1025, 4097})
    for (const std::string_view dtype :
         {"F32", "F16", "BF16", "F64", "I32", "I64", "U8", "BOOL", "I8",
          "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ", "I16", "U16",
          "U32", "U64", "C64"}) {
      const TensorType type = *tensor_type_from(dtype);
      std::string bytes(size * size_of(type.dtype), '\0');
      for (std::size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<char>(type.other == "BOOL" ? i % 2 : i % 61);
      write({{"x", type, {size}, bytes},
             {"\"\\ \xc3\xa4", type, {1, size}, bytes},
             {"odd", {DType::kUInt8}, {3}, "abc"},
             checkpoint::test::Content::of("wide", {},
                                           std::vector<double>{0.5})});
    }
}

std::string hexadecimal(const Buffer& buffer) {
  std::string text;
  for (std::size_t i = 0; i < buffer.bytes(); ++i)
    text += fmt::format("{:02x}",
                        static_cast<const std::uint8_t*>(buffer.data())[i]);
  return text;
}

json read(const std::string& path) {
  try {
    Weights weights(posix_file_system(), path);
    json tensors = json::object();
    for (const std::string& name : weights.names()) {
      const TensorEntry& tensor = *weights.find(name);
      Buffer values(tensor.bytes / size_of(tensor.type.dtype),
                    tensor.type.dtype);
      weights.read(name, values.view());
      tensors[name] = {{"dtype", safetensors_name(tensor.type)},
                       {"shape", tensor.shape},
                       {"bytes", hexadecimal(values)}};
    }
    return {{"tensors", tensors}};
  } catch (const std::exception& error) {
    return {{"refused", error.what()}};
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() >= 5 && words[0] == "tiny") {
    checkpoint::test::write_tiny(words[1], {.world = std::stoi(words[2]),
                                            .step = std::stoi(words[3]),
                                            .offset = std::stod(words[4]),
                                            .has_masters = words.size() > 5});
  } else if (words.size() == 4 && words[0] == "full") {
    checkpoint::test::write_full(
        words[1], {.world = std::stoi(words[2]), .seen = std::stoi(words[3])});
  } else if (words.size() == 2 && words[0] == "files") {
    write_files(words[1]);
  } else if (words.size() >= 2 && words[0] == "read") {
    for (std::size_t i = 1; i < words.size(); ++i)
      std::cout << read(words[i]).dump(-1, ' ', false,
                                       json::error_handler_t::replace)
                << '\n';
  } else {
    return 2;
  }
  return 0;
}
