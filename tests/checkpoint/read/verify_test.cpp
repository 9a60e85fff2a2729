// SPDX-License-Identifier: Apache-2.0
// Every bit of a checkpoint counts: what is changed, cut, swapped or missing is
// found and named.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/read/saved_arrays.h"
#include "checkpoint/read/verified_file.h"
#include "checkpoint/read/weights.h"
#include "checkpoint/tiny_checkpoint.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/long.h"
#include "support/nobody.h"
#include "thinwire/checkpoint/inspect.h"

namespace thinwire::checkpoint::verify_test {
namespace {

namespace fs = std::filesystem;
using test::Content;
using test::read_all;
using test::read_file;
using test::Tiny;
using test::write_file;
using test::write_full;
using test::write_tiny;
using thinwire::test::expect_error;
using thinwire::test::Folder;
using thinwire::test::is_long;

const std::vector<std::string> kFiles{
    "config.json", "manifest.json", "model.safetensors",
    "state-00001-of-00002.safetensors", "state-00002-of-00002.safetensors"};

// Verification names the file, and (but for attachments) reading fails.
void expect_damage(const std::string& directory, const std::string& file) {
  const Verdict verdict = verify(directory);
  ASSERT_FALSE(verdict.good());
  EXPECT_EQ(verdict.damages[0].file, file) << verdict.damages[0].what;
  EXPECT_FALSE(verdict.damages[0].what.empty());
  if (file == "config.json") return;
  EXPECT_THROW(read_all(directory), Error);
}

TEST(Verify, AWholeCheckpointIsGood) {
  for (const int world : {1, 2, 3, 4}) {
    const Folder directory;
    write_tiny(directory.path(), {world});
    std::uint64_t last = 0;
    const Verdict verdict =
        verify(directory.path(), [&](std::uint64_t bytes, std::uint64_t total) {
          EXPECT_GT(bytes, last);
          EXPECT_LE(bytes, total);
          last = bytes;
        });
    EXPECT_TRUE(verdict.good()) << verdict.damages[0].what;
    EXPECT_EQ(verdict.nonfinite, 0u);
    std::uint64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(directory.path()))
      bytes += entry.file_size();
    EXPECT_EQ(verdict.bytes, bytes);
    EXPECT_EQ(last, bytes);
    EXPECT_NO_THROW(read_all(directory.path()));
  }
}

TEST(Verify, NoByteMayChange) {
  const Folder directory;
  write_tiny(directory.path());
  // All in the long form; else the manifest's and data's, of the padding some.
  for (const std::string& name : kFiles) {
    const std::string path = directory.in(name);
    const std::string bytes = read_file(path);
    const bool has_padding = bytes.size() > 4096;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const bool is_padding =
          has_padding && i > 16 && i < 4080 && bytes[i] == ' ';
      if (!is_long() && (is_padding ? i % 256 != 0 : i % 7 != 0)) continue;
      std::string other = bytes;
      other[i] = static_cast<char>(other[i] ^ (1 << i % 8));
      write_file(path, other);
      SCOPED_TRACE(name + " byte " + std::to_string(i));
      expect_damage(directory.path(), name);
      if (testing::Test::HasFailure()) return;
    }
    write_file(path, bytes);
  }
  EXPECT_TRUE(verify(directory.path()).good());
}

TEST(Verify, NoFileMayBeCutOrLonger) {
  const Folder directory;
  write_tiny(directory.path());
  for (const std::string& name : kFiles) {
    const std::string path = directory.in(name);
    const std::string bytes = read_file(path);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      if (!is_long() && size % 101 != 0 && size + 2 < bytes.size()) continue;
      write_file(path, std::string_view(bytes).substr(0, size));
      SCOPED_TRACE(name + " cut to " + std::to_string(size));
      expect_damage(directory.path(), name);
    }
    for (const std::size_t more : {1, 7, 4096}) {
      write_file(path, bytes + std::string(more, '\0'));
      SCOPED_TRACE(name + " longer by " + std::to_string(more));
      expect_damage(directory.path(), name);
    }
    write_file(path, bytes);
  }
}

TEST(Verify, FilesMayNotBeSwappedMixedOrMissing) {
  const Folder directory;
  const Folder other;
  write_tiny(directory.path());
  write_tiny(other.path(), {.step = 1001, .offset = 1});
  const std::string first = directory.in(kFiles[3]);
  const std::string second = directory.in(kFiles[4]);
  fs::rename(first, first + ".x");
  fs::rename(second, first);
  fs::rename(first + ".x", second);
  expect_damage(directory.path(), kFiles[3]);
  for (const std::string& name : kFiles) {
    SCOPED_TRACE(name);
    write_tiny(directory.path());
    if (name != "config.json") {  // the same in both
      write_file(directory.in(name), read_file(other.in(name)));
      // A manifest of another checkpoint does not fit the files.
      expect_damage(directory.path(),
                    name == "manifest.json" ? "model.safetensors" : name);
    }
    fs::remove(directory.in(name));
    if (name == "manifest.json")
      expect_error(ErrorCode::kUnavailable, {"there is no checkpoint"},
                   [&] { (void)verify(directory.path()); });
    else
      expect_damage(directory.path(), name);
  }
}

TEST(Verify, LinksAndDirectoriesAreNoFiles) {
  const Folder directory;
  write_tiny(directory.path());
  for (const std::string& name : kFiles) {
    SCOPED_TRACE(name);
    const std::string path = directory.in(name);
    fs::rename(path, path + ".real");
    fs::create_symlink(path + ".real", path);
    expect_damage(directory.path(), name);
    fs::remove(path);
    fs::create_directory(path);
    expect_damage(directory.path(), name);
    fs::remove(path);
    fs::rename(path + ".real", path);
  }
}

// Runs as another user, since root may read everything.
TEST(Verify, AFileThatCannotBeReadIsNoDamage) {
  const Folder directory;
  fs::permissions(directory.path(), fs::perms{0755});
  write_tiny(directory.path());
  for (const std::string& name : kFiles) {
    fs::permissions(directory.in(name), fs::perms{0});
    {
      const thinwire::test::Nobody nobody;
      expect_error(ErrorCode::kUnavailable,
                   {directory.in(name), "Permission denied"},
                   [&] { (void)verify(directory.path()); });
    }
    fs::permissions(directory.in(name), fs::perms{0644});
  }
}

TEST(Verify, EveryBadRangeIsNamedWithItsTensors) {
  const Folder directory;
  write_tiny(directory.path());
  // A file of three chunks: two tensors, of which the second spans two.
  const std::size_t half = kChunkBytes / sizeof(float);
  const std::string name = "model.safetensors";
  std::string bytes = test::safetensors_of(
      {Content::of("x", std::vector<float>(half / 2, std::nanf(""))),
       Content::of("y", std::vector<float>(2 * half, HUGE_VALF))});
  write_file(directory.in(name), bytes);
  Manifest manifest = read_manifest(posix_file_system(), directory.path());
  manifest.files[0] = test::saved_file(name, bytes);
  manifest.parameters.clear();
  manifest.aliases.clear();
  manifest.others.clear();
  manifest.arrays.clear();
  for (SavedFile& file : manifest.files) file.tensors.clear();
  write_file(directory.in("manifest.json"), write_manifest(manifest));
  const Verdict good = verify(directory.path());
  EXPECT_TRUE(good.good());
  EXPECT_EQ(good.nonfinite, half / 2 + 2 * half);

  bytes[kChunkBytes / 4] ^= 1;
  bytes[2 * kChunkBytes + 5] ^= 1;
  write_file(directory.in(name), bytes);
  const Verdict verdict = verify(directory.path());
  ASSERT_EQ(verdict.damages.size(), 2u);
  EXPECT_EQ(verdict.damages[0].begin, 0u);
  EXPECT_EQ(verdict.damages[0].end, kChunkBytes);
  EXPECT_EQ(verdict.damages[1].begin, 2 * kChunkBytes);
  EXPECT_EQ(verdict.damages[1].end, bytes.size());
  // Chunk 0 has the header too, so what it says is not known.
  EXPECT_EQ(verdict.damages[1].what,
            "the header, or data that shares these bytes with it");
  bytes[kChunkBytes / 4] ^= 1;
  write_file(directory.in(name), bytes);
  const Verdict second = verify(directory.path());
  ASSERT_EQ(second.damages.size(), 1u);
  EXPECT_EQ(second.damages[0].what, "y");
  manifest.arrays = {{.name = "masters", .is_parameters = true}};
  write_file(directory.in("manifest.json"), write_manifest(manifest));
  const Verdict spare = verify(directory.path());
  ASSERT_EQ(spare.damages.size(), 1u);
  EXPECT_EQ(spare.damages[0].what, "y (a resume reads the masters instead)");
}

TEST(Verify, DamageToAnArrayNamesItsParameters) {
  const Folder directory;
  const std::string name = "state-00001-of-00001.safetensors";
  const std::size_t half = kChunkBytes / sizeof(float) / 2;
  Manifest manifest;
  manifest.id = manifest.run = std::string(32, '0');
  for (const char* parameter : {"a", "b", "c", "d"})
    manifest.parameters.push_back({parameter, {half}});
  manifest.arrays = {{"m", optim::Axis::kElement, optim::Sharing::kSharded}};
  // The header and the index are in the first chunk.
  const std::vector<std::int64_t> rows{
      0, 0, std::int64_t(half), 1, 0, std::int64_t(half),
      2, 0, std::int64_t(half), 3, 0, std::int64_t(half)};
  std::string bytes =
      test::safetensors_of({Content::of("m", std::vector<float>(4 * half)),
                            Content::of("fragments/0", {4, 3}, rows)});
  const std::string weights =
      test::safetensors_of({Content::of("a", std::vector<float>(half)),
                            Content::of("b", std::vector<float>(half)),
                            Content::of("c", std::vector<float>(half)),
                            Content::of("d", std::vector<float>(half))});
  write_file(directory.in("model.safetensors"), weights);
  manifest.weight_files = {"model.safetensors"};
  manifest.files = {test::saved_file(name, bytes),
                    test::saved_file("model.safetensors", weights)};
  manifest.files[0].tensors = {{"m", "fragments/0"}};
  write_file(directory.in("manifest.json"), write_manifest(manifest));
  write_file(directory.in(name), bytes);
  ASSERT_TRUE(verify(directory.path()).good());

  bytes[kChunkBytes + 1] ^= 1;
  write_file(directory.in(name), bytes);
  const Verdict verdict = verify(directory.path());
  ASSERT_EQ(verdict.damages.size(), 1u);
  EXPECT_EQ(verdict.damages[0].what, "m of b, c, d");
  SavedArrays arrays(posix_file_system(), directory.path(), manifest);
  std::vector<float> values(half);
  arrays.read("m", -1, 0, {0, 100}, View(values.data(), 100, DType::kFloat32));
  expect_error(ErrorCode::kCorruptCheckpoint,
               {name, "bytes 4194304-8388607 are damaged: m of b, c, d"}, [&] {
                 arrays.read("m", -1, 2, {0, half}, values);
               });
}

TEST(Inspect, TellsWhatTheManifestSays) {
  const Folder root;
  write_tiny(root.in("step-0000001000"), {.world = 2, .step = 1000});
  write_tiny(root.in("step-0000002000"), {.world = 3, .step = 2000});
  write_tiny(root.in("step-0000003000"), {.world = 1, .step = 3000});
  fs::remove(root.in("step-0000003000/config.json"));
  const auto all = inspect(root.path());
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].path, root.in("step-0000002000"));
  EXPECT_TRUE(all[0].complete);
  EXPECT_EQ(all[0].world, 3);
  EXPECT_EQ(all[0].parameters, test::kTinySize);
  EXPECT_EQ(all[1].step, 1000);
  EXPECT_FALSE(all[2].complete);
  EXPECT_NE(all[2].problem.find("config.json"), std::string::npos);
  for (const std::string& path :
       {all[1].path, all[1].path + "/", root.in("./step-0000001000//")}) {
    const auto one = inspect(path);
    ASSERT_EQ(one.size(), 1u);
    EXPECT_EQ(one[0].step, 1000);
    EXPECT_EQ(one[0].optimizer, "onebit_adam");
  }
  const Folder empty;
  expect_error(ErrorCode::kUnavailable, {"there is no checkpoint"},
               [&] { (void)inspect(empty.path()); });
  expect_error(ErrorCode::kUnavailable, {"nowhere"},
               [&] { (void)inspect(empty.in("nowhere")); });
}

// ---- what only save() writes: the application's arrays, tensors beside the
// parameters, other names, local steps

TEST(FullCheckpoint, IsGood) {
  for (const int world : {1, 2, 3}) {
    const Folder folder;
    const std::string path = write_full(folder.path(), {.world = world});
    const Verdict verdict = verify(path);
    for (const Damage& damage : verdict.damages)
      ADD_FAILURE() << damage.file << ": " << damage.what;
    const Description all = inspect(path).front();
    EXPECT_EQ(verdict.bytes,
              all.bytes + read_file(path + "/manifest.json").size());
    EXPECT_EQ(all.steps_behind, 2);
  }
}

// Every rank would open every other's: those that hold arrays are open already,
// so nothing is missed when they go.
TEST(FullCheckpoint, HasWhatTheApplicationAddedInFilesThatAreOpen) {
  const Folder folder;
  const std::string path = write_full(folder.path());
  FileSystem& files = posix_file_system();
  const Manifest manifest = read_manifest(files, path);
  EXPECT_EQ(Weights(files, path, manifest).names(),
            (std::vector<std::string>{"b", "empty", "frozen", "mask", "one",
                                      "tied", "w"}));
  SavedArrays arrays(files, path, manifest);
  for (const SavedFile& saved : manifest.files)
    files.remove_file(path + '/' + saved.name);
  const StateDict common = arrays.extra();
  EXPECT_EQ(common.array("seen").as<std::int64_t>()[0], 3);
  EXPECT_EQ(common.integer("next"), 17);
  for (const int rank : {0, 1}) {
    const StateDict own = arrays.extra_of_rank(rank);
    EXPECT_EQ(own.array("random").size(), static_cast<std::size_t>(rank) + 2);
    EXPECT_EQ(own.integer("rank"), rank);
  }
}

// Every tensor of every file, the application's too.
TEST(FullCheckpoint, DamageToAnyTensorIsFoundAndNamed) {
  const Folder folder;
  const std::string path = write_full(folder.path());
  FileSystem& files = posix_file_system();
  const Manifest manifest = read_manifest(files, path);
  int of_application = 0;
  for (const SavedFile& saved : manifest.files) {
    const SafetensorsHeader header = VerifiedFile(files, path, saved).header();
    const std::string bytes = read_file(path + '/' + saved.name);
    for (const TensorEntry& tensor : header.tensors) {
      if (tensor.bytes == 0) continue;
      std::string damaged = bytes;
      damaged[tensor.end() - 1] ^= 1;
      write_file(path + '/' + saved.name, damaged);
      const Verdict verdict = verify(path);
      ASSERT_EQ(verdict.damages.size(), 1u) << tensor.name;
      EXPECT_EQ(verdict.damages[0].file, saved.name);
      if (!tensor.name.starts_with("extra")) continue;
      ++of_application;
      EXPECT_THROW(
          {
            SavedArrays arrays(files, path, manifest);
            static_cast<void>(arrays.extra());
            for (int r = 0; r < 2; ++r)
              static_cast<void>(arrays.extra_of_rank(r));
          },
          Error);
    }
    write_file(path + '/' + saved.name, bytes);
  }
  EXPECT_EQ(of_application, 3);
  EXPECT_TRUE(verify(path).good());
}

}  // namespace
}  // namespace thinwire::checkpoint::verify_test
