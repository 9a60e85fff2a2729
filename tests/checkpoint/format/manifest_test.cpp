// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/format/manifest.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/format/manifests.h"
#include "support/errors.h"
#include "thinwire/core/checksum.h"

namespace thinwire::checkpoint::manifest_test {
namespace {

using test::full_manifest;
using test::rehashed;
using thinwire::test::expect_error;
using thinwire::test::expect_invalid;

constexpr const char* kFile = "dir/manifest.json";

TEST(Manifest, ReadsItsOwnText) {
  const std::string text = write_manifest(full_manifest());
  EXPECT_EQ(write_manifest(parse_manifest(text, kFile)), text);
}

TEST(Manifest, ScalarsKeepTheirBits) {
  const Manifest m = full_manifest();
  const Manifest again = parse_manifest(write_manifest(m), kFile);
  ASSERT_EQ(again.scalars.scalars().size(), m.scalars.scalars().size());
  for (const auto& [name, value] : m.scalars.scalars()) {
    SCOPED_TRACE(name);
    if (const auto* integer = std::get_if<std::int64_t>(&value))
      EXPECT_EQ(again.scalars.integer(name), *integer);
    else if (const double real = std::get<double>(value); std::isnan(real))
      EXPECT_TRUE(std::isnan(again.scalars.real(name)));
    else
      EXPECT_EQ(std::bit_cast<std::uint64_t>(again.scalars.real(name)),
                std::bit_cast<std::uint64_t>(real));
  }
}

TEST(Manifest, WeightsUnderTheNextStepLackNoStep) {
  Manifest manifest = full_manifest();
  EXPECT_EQ(steps_left_out(manifest), 3);
  manifest.scalars.put_integer("parameters_differ", 0);
  EXPECT_EQ(steps_left_out(manifest), 3);
  manifest.scalars.put_integer("parameters_differ", 1);
  EXPECT_EQ(steps_left_out(manifest), 0);
}

TEST(Manifest, TheTextIsAsTheFormatSays) {
  const std::string text = write_manifest(full_manifest());
  for (const std::string_view piece : {
           "{\n  \"format\": \"thinwire.checkpoint\",\n"
           "  \"version\": [1, 0],\n  \"requires\": [],\n  \"id\": \"0123",
           "  \"parameters\": [\n    {\"name\": \"h.0.w\", \"shape\": [768, "
           "3072], \"group\": 0, \"dtype\": \"BF16\"},\n",
           "  \"aliases\": [[\"lm_head.weight\", \"wte.weight\"]],\n",
           "\"xxh3\": [\"0000000000000001\", \"ffffffffffffffff\"]",
           "\"tensors\": [[\"worker_error\", \"fragments/0\"], "
           "[\"history\", \"\"]]",
           "{\"name\": \"loss_scale\", \"real\": 65536.0}",
           "{\"name\": \"clip_ratio\", \"real\": \"nan\"}",
           "{\"name\": \"minus_zero\", \"real\": -0.0}",
           "  \"weights\": {\"files\": [\"model.safetensors\"], "
           "\"steps_behind\": 3},\n  \"manifest_xxh3\": \"",
       })
    EXPECT_NE(text.find(piece), std::string::npos) << piece << "\n" << text;
  EXPECT_EQ(text.find("durable"), std::string::npos);
  // The hash is of everything in front of its key.
  const std::size_t key = text.rfind("\"manifest_xxh3\"");
  const std::string hash = hash_text(checksum(text.substr(0, key)));
  EXPECT_EQ(text.substr(key), "\"manifest_xxh3\": \"" + hash + "\"\n}\n");
}

TEST(Manifest, NoByteMayChange) {
  const std::string text = write_manifest(full_manifest());
  for (std::size_t i = 0; i < text.size(); ++i)
    for (const int flip : {1, 0x20, 0x80}) {
      std::string other = text;
      other[i] = static_cast<char>(other[i] ^ flip);
      expect_error(ErrorCode::kCorruptCheckpoint, {kFile},
                   [&] { (void)parse_manifest(other, kFile); });
    }
}

TEST(Manifest, UnknownMembersAndNewerMinorVersionsAreRead) {
  const std::string text = write_manifest(full_manifest());
  for (const char* by :
       {"\"version\": [1, 7]", "\"version\": [1, 0], \"new\": {\"a\": [1]}",
        "\"version\": [1, 0], \"new\": [[1], {}, 2]"})
    EXPECT_EQ(
        parse_manifest(rehashed(text, "\"version\": [1, 0]", by), kFile).step,
        1000);
  EXPECT_EQ(parse_manifest(rehashed(text, "\"group\": 0",
                                    "\"group\": 0, \"expert\": true"),
                           kFile)
                .parameters.size(),
            2u);
}

struct Change {
  std::string_view piece;
  std::string_view by;
  std::string_view why;
};

TEST(Manifest, RefusesMembersThatDoNotFitByName) {
  const std::string text = write_manifest(full_manifest());
  const Change changes[] = {
      {"thinwire.checkpoint", "other", "format: \"other\""},
      {"\"version\": [1, 0]", "\"version\": [2, 0]", "version: [2, 0]"},
      {"\"version\": [1, 0]", "\"version\": [0, 9]", "version: [0, 9]"},
      {"\"version\": [1, 0]", "\"version\": 1", "version: 1"},
      {"\"requires\": []", "\"requires\": [\"sparse\"]", "\"sparse\""},
      {"\"requires\": []", "\"requires\": [{}]", "requires"},
      {"  \"step\": 1000,\n", "", "it has no step"},
      {"\"step\": 1000", "\"step\": 1000.0", "step: 1000.0"},
      {"\"step\": 1000", "\"step\": -1", "step: -1"},
      {"\"step\": 1000", "\"step\": 9223372036854775808", "step"},
      {"\"step\": 1000", "\"step\": {}", "step"},
      {"\"step\": 1000", "\"step\": 1000, \"step\": 1000",
       "duplicate key \"step\""},
      {"\"world\": 2", "\"world\": 0", "world: 0"},
      {"\"world\": 2", "\"world\": 3",
       "scalars_of_ranks must be of 3 ranks, got 2"},
      {"\"zero_stage\": 1", "\"zero_stage\": 4", "zero_stage"},
      {"\"id\": \"0", "\"id\": \"G", "id: "},
      {"\"id\": \"0", "\"id\": \"", "id: "},
      {"\"group\": 0, ", "", "parameters"},
      {"\"group\": 0", "\"group\": -1", "parameters"},
      {"[768, 3072]", "[768, 1e3]", "parameters"},
      {"[768, 3072]", "[9007199254740992, 2]", "parameters"},
      {"\"BF16\"", "\"BF8\"", "parameters: \"BF8\" is not a dtype"},
      {"\"h.0.w\"", "\"h\\u0000w\"", "control character"},
      {"\"tab\xc3\xa4 \\\"q\\\"\"", "\"h.0.w\"", "\"h.0.w\" appears twice"},
      {"[[\"lm_head.weight\", \"wte.weight\"]]", "[[\"lm_head.weight\"]]",
       "aliases"},
      {"[[\"lm_head.weight\", \"wte.weight\"]]", "[\"lm_head.weight\"]",
       "aliases"},
      {"\"axis\": \"element\"", "\"axis\": \"bucket\"",
       "arrays: \"bucket\" is not known"},
      {"\"sharing\": \"mean\"", "\"sharing\": 1", "arrays: 1 is not a text"},
      {"\"sharing\": \"mean\", \"dtype\": \"F32\"",
       "\"sharing\": \"mean\", \"dtype\": \"BOOL\"", "arrays"},
      {"\"name\": \"model.safetensors\"", "\"name\": \"../m\"",
       "files: \"../m\" is not a file name"},
      {"\"name\": \"model.safetensors\"", "\"name\": \".m\"", "file name"},
      {"\"name\": \"model.safetensors\"", "\"name\": \"\"", "file name"},
      {"\"bytes\": 4194305", "\"bytes\": 4194304", "2 hashes for 4194304"},
      {"\"bytes\": 4194305", "\"bytes\": 9007199254740992",
       "2 hashes for 9007199254740992"},
      {"0000000000000001", "000000000000001", "16 hexadecimal digits"},
      {"ffffffffffffffff", "FFFFFFFFFFFFFFFF", "16 hexadecimal digits"},
      {"[\"worker_error\", \"fragments/0\"]", "[\"worker_error\"]", "a pair"},
      {"\"real\": 65536.0", "\"real\": \"many\"", "not of its kind"},
      {"\"real\": 65536.0", "\"unreal\": 65536.0", "has no value"},
      {"\"real\": 65536.0", "\"real\": 1e999", "not JSON"},
      {"\"integer\": 1000", "\"integer\": 1e3", "not of its kind"},
      {"\"name\": \"loss_scale\"", "\"name\": 1", "has no name"},
      {"\"name\": \"loss_scale\"", "\"name\": \"step\"", "appears twice"},
      {"\"files\": [\"model.safetensors\"]", "\"files\": [\"m.safetensors\"]",
       "weights: m.safetensors is not one of the files"},
      {"\"steps_behind\": 3", "\"steps\": 3", "steps_behind"},
      {"\"parameters\": [", "\"parameters\": [7, ", "parameters: 7"},
      {"\"optimizer\": \"onebit_adam\"", "\"optimizer\": [[]]", "optimizer"},
      {"{\n", "[\n", "not"},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(std::string(change.piece) + " -> " + std::string(change.by));
    const std::string other = rehashed(text, change.piece, change.by);
    ASSERT_NE(other, text);
    expect_error(ErrorCode::kCorruptCheckpoint,
                 {"dir/manifest.json: ", change.why},
                 [&] { (void)parse_manifest(other, kFile); });
  }
}

TEST(Manifest, TextsThatAreNoTextsAreRejected) {
  Manifest bytes = full_manifest();
  bytes.extra.put_text("bytes", "\xff\xfe");
  Manifest name = full_manifest();
  name.extra.put_integer("a\nb", 1);
  Manifest config = full_manifest();
  config.config = "\xc0\x80";
  for (const auto& [manifest, why] :
       {std::pair(&bytes, "text 'bytes' must be UTF-8"),
        {&name, "control character"},
        {&config, "config must be UTF-8"}})
    expect_invalid({why}, [m = manifest] { (void)write_manifest(*m); });
}

TEST(Manifest, ManyFilesAndParametersAreReadAgain) {
  Manifest m = full_manifest();
  m.parameters.clear();
  for (int i = 0; i < 20'000; ++i)
    m.parameters.push_back({"layer." + std::to_string(i), {4, 5}, 0, {}});
  m.files[0].bytes = 20'000 * kChunkBytes;
  m.files[0].chunk_hashes.assign(20'000, 0x1234567890abcdef);
  const Manifest again = parse_manifest(write_manifest(m), kFile);
  EXPECT_EQ(again.parameters.size(), 20'000u);
  EXPECT_EQ(again.files[0].chunk_hashes, m.files[0].chunk_hashes);
}

}  // namespace
}  // namespace thinwire::checkpoint::manifest_test
