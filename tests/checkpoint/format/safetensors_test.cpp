// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/format/safetensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "support/errors.h"

namespace thinwire::checkpoint::safetensors_test {
namespace {

using test::expect_error;
using test::expect_invalid;

std::vector<TensorEntry> some_tensors() {
  return {{"half", {DType::kFloat16}, {3}},
          {"bytes", {DType::kUInt8}, {7}},
          {"mask", {DType::kUInt8, "BOOL"}, {2, 2}},
          {"wide", {DType::kFloat64}, {}},
          {"empty", {DType::kFloat32}, {0, 5}},
          {"\"quoted\" \xc3\xa4 \\", {DType::kFloat32}, {2, 3}},
          {"rows", {DType::kInt64}, {4, 3}},
          {"brain", {DType::kBFloat16}, {1}},
          {"int", {DType::kInt32}, {1}},
          {"short", {DType::kFloat16, "I16"}, {3}},
          {"complex", {DType::kInt64, "C64"}, {2}}};
}

SafetensorsHeader read_back(const SafetensorsHeader& header,
                            Writer writer = Writer::kThis) {
  const std::string text = write_header(header);
  EXPECT_EQ(text.size(), header.data_begin);
  const auto length =
      header_bytes(std::string_view(text).substr(0, 8), header.file_bytes, "f");
  EXPECT_EQ(length, text.size() - 8);
  return parse_header(std::string_view(text).substr(8), header.file_bytes, "f",
                      writer);
}

TEST(Safetensors, ReadsItsOwnHeader) {
  const auto header =
      place_tensors(some_tensors(), {{"format", "pt"}, {"part", "1/2"}});
  for (const Writer writer : {Writer::kThis, Writer::kOther}) {
    const auto again = read_back(header, writer);
    EXPECT_EQ(again.data_begin, header.data_begin);
    EXPECT_EQ(again.file_bytes, header.file_bytes);
    EXPECT_EQ(again.metadata, header.metadata);
    ASSERT_EQ(again.tensors.size(), header.tensors.size());
    for (std::size_t i = 0; i < header.tensors.size(); ++i) {
      EXPECT_EQ(again.tensors[i].name, header.tensors[i].name);
      EXPECT_EQ(again.tensors[i].type, header.tensors[i].type);
      EXPECT_EQ(again.tensors[i].shape, header.tensors[i].shape);
      EXPECT_EQ(again.tensors[i].begin, header.tensors[i].begin);
      EXPECT_EQ(again.tensors[i].bytes, header.tensors[i].bytes);
    }
  }
}

TEST(Safetensors, LargerTypesComeFirstAndNothingLiesBetween) {
  const auto header = place_tensors(some_tensors(), {});
  EXPECT_EQ(header.data_begin % 4096, 0u);
  EXPECT_EQ(header.tensors[0].name, "wide");
  EXPECT_EQ(header.tensors[1].name, "rows");
  EXPECT_EQ(header.tensors[2].name, "complex");
  std::uint64_t end = header.data_begin;
  for (const TensorEntry& tensor : header.tensors) {
    EXPECT_EQ(tensor.begin, end) << tensor.name;
    EXPECT_EQ(tensor.begin % size_of(tensor.type.dtype), 0u) << tensor.name;
    end = tensor.end();
  }
  EXPECT_EQ(end, header.file_bytes);
  EXPECT_EQ(end - header.data_begin, 8u + 96 + 16 + 24 + 4 + 6 + 2 + 6 + 7 + 4);
}

TEST(Safetensors, AFileWithoutTensorsIsOne) {
  const auto header = place_tensors({}, {});
  EXPECT_EQ(header.file_bytes, 4096u);
  EXPECT_TRUE(read_back(header).tensors.empty());
}

TEST(Safetensors, TensorsThatNobodyCouldReadAreRejected) {
  const auto expect = [](TensorEntry tensor,
                         std::initializer_list<std::string_view> parts) {
    expect_invalid(parts,
                   [&] { (void)place_tensors({std::move(tensor)}, {}); });
  };
  expect({"__metadata__"}, {"__metadata__"});
  expect({std::string(1025, 'x')}, {"longer than 1024 bytes"});
  expect({"a\nb"}, {"control character"});
  expect({"\xff"}, {"not UTF-8"});
  expect({"\xed\xa0\x80"}, {"not UTF-8"});
  expect({"t", {}, std::vector<std::size_t>(17, 1)}, {"'t'", "16", "17"});
  expect({"t", {}, {std::size_t{1} << 40, std::size_t{1} << 40}}, {"2^53"});
  expect_invalid({"'a'", "twice"}, [] {
    (void)place_tensors({{"a"}, {"a"}}, {});
  });
  expect_invalid({"'k'", "twice"}, [] {
    (void)place_tensors({}, {{"k", "1"}, {"k", "2"}});
  });
  expect_invalid({"100000000"}, [] {
    (void)place_tensors({}, {{"k", std::string(100'000'000, 'x')}});
  });
}

TEST(Safetensors, TheLengthOfAHeaderIsCheckedBeforeItIsRead) {
  const auto length = [](std::uint64_t value, std::uint64_t file_bytes) {
    std::string first(8, '\0');
    std::memcpy(first.data(), &value, 8);
    return header_bytes(first, file_bytes, "dir/f");
  };
  EXPECT_EQ(length(100, 108), 100u);
  const auto expect = [&](std::uint64_t value, std::uint64_t file_bytes) {
    expect_error(ErrorCode::kCorruptCheckpoint, {"dir/f"},
                 [&] { (void)length(value, file_bytes); });
  };
  expect(101, 108);
  expect(0, 7);
  expect(100'000'001, std::uint64_t{1} << 40);
  expect(~std::uint64_t{0}, ~std::uint64_t{0});
  expect(std::uint64_t{1} << 63, 4096);
}

// The header of one tensor, t.
std::string of(std::string_view dtype, std::string_view shape,
               std::string_view offsets) {
  return fmt::format(R"({{"t":{{"dtype":{},"shape":{},"data_offsets":{}}}}})",
                     dtype, shape, offsets);
}

struct Refused {
  std::string json;
  std::uint64_t data;
  std::string_view why;
};

TEST(Safetensors, HeadersThatAreWrongAreRefusedByName) {
  const Refused cases[] = {
      {"", 0, "not a JSON object"},
      {" {}", 0, "not a JSON object"},
      {"[]", 0, "not a JSON object"},
      {"{", 0, "not JSON"},
      {"{} x", 0, "not JSON"},
      {R"({"__metadata__":{"a":1}})", 0, "__metadata__"},
      {R"({"__metadata__":[]})", 0, "__metadata__"},
      {R"({"__metadata__":{"a":"","a":""}})", 0, "duplicate key"},
      {R"({"t":[]})", 0, "\"t\" must be an object"},
      {R"({"t":{}})", 0, "\"t\" has no dtype"},
      {R"({"t":{"dtype":"F32","shape":[1]}})", 4, "has no data_offsets"},
      {of(R"("F31")", "[1]", "[0,4]"), 4, "unknown dtype \"F31\""},
      {of("4", "[1]", "[0,4]"), 4, "unknown dtype 4"},
      {of(R"("F32")", "1", "[0,4]"), 4, "shape"},
      {of(R"("F32")", "[-1]", "[0,4]"), 4, "shape"},
      {of(R"("F32")", "[1.0]", "[0,4]"), 4, "shape"},
      {of(R"("F32")", "[18446744073709551617]", "[0,4]"), 4, "shape"},
      {of(R"("F32")", "[4294967296,4294967296]", "[0,0]"), 0, "shape"},
      {of(R"("F32")", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,4]"), 4,
       "up to 16 sizes"},
      {of(R"("F32")", "[1]", "[0]"), 4, "data_offsets"},
      {of(R"("F32")", "[1]", "[4,0]"), 4, "data_offsets"},
      {of(R"("F32")", "[1]", R"([0,"4"])"), 4, "data_offsets"},
      {of(R"("F32")", "[1]", "[0,8]"), 8,
       "has 8 bytes, its shape and dtype need 4"},
      {of(R"("F32")", "[1]", "[4,8]"), 8, "without holes"},
      {of(R"("F32")", "[1]", "[0,4]"), 5, "the tensors have 4 bytes"},
      {of(R"("F32")", "[1]", "[0,4]"), 3, "the tensors have 4 bytes"},
      {R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("u":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, "\"u\" begins at 1, not at 2"},
      {R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
       R"("t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
       2, "duplicate key \"t\""},
      {R"({"t":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
       2, "duplicate key \"dtype\""},
      {"{\"a\\u0001\":{\"dtype\":\"U8\",\"shape\":[2],"
       "\"data_offsets\":[0,2]}}",
       2, "control character"},
  };
  for (const Refused& one : cases)
    for (const Writer writer : {Writer::kThis, Writer::kOther}) {
      SCOPED_TRACE(one.json);
      expect_error(ErrorCode::kCorruptCheckpoint, {"dir/f: ", one.why}, [&] {
        (void)parse_header(one.json, 8 + one.json.size() + one.data, "dir/f",
                           writer);
      });
    }
}

TEST(Safetensors, DeepHeadersAreRefused) {
  const std::string json =
      "{\"t\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  expect_error(ErrorCode::kCorruptCheckpoint, {"nested at most 16 deep"},
               [&] { (void)parse_header(json, 8 + json.size(), "f"); });
}

TEST(Safetensors, FilesOfOthersMayHaveMoreAndBeInAnyOrder) {
  const std::string_view cases[] = {
      R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[4,5]},)"
      R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":{"y":1}},)"
      R"("b":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}})",
      R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
      R"("a":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})"};
  for (const std::string_view json : cases) {
    SCOPED_TRACE(json);
    const std::uint64_t bytes = 8 + json.size() + 5;
    const auto header = parse_header(json, bytes, "f", Writer::kOther);
    ASSERT_EQ(header.tensors.size(), 2u);
    EXPECT_EQ(header.tensors[0].begin, header.data_begin);
    EXPECT_EQ(header.tensors[1].end(), bytes);
    expect_error(ErrorCode::kCorruptCheckpoint, {"f: tensor"},
                 [&] { (void)parse_header(json, bytes, "f"); });
  }
}

}  // namespace
}  // namespace thinwire::checkpoint::safetensors_test
