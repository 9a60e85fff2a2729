// SPDX-License-Identifier: Apache-2.0
// What only save() writes: the application's arrays, tensors beside the
// parameters, other names, local steps. It is verified like the rest.
#include "checkpoint/full_checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "checkpoint/read/saved_arrays.h"
#include "checkpoint/read/verified_file.h"
#include "checkpoint/read/weights.h"
#include "checkpoint/tiny_checkpoint.h"
#include "support/folder.h"
#include "thinwire/checkpoint/inspect.h"
#include "thinwire/core/error.h"

namespace thinwire::checkpoint::full_checkpoint_test {
namespace {

using test::Full;
using test::read_file;
using test::write_file;
using test::write_full;
using thinwire::test::Folder;

TEST(FullCheckpoint, IsGood) {
  for (const int world : {1, 2, 3})
    for (const Residuals residuals : {Residuals::kPerRank, Residuals::kMean}) {
      const Folder folder;
      const std::string path =
          write_full(folder.path(), {.world = world, .residuals = residuals});
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
}  // namespace thinwire::checkpoint::full_checkpoint_test
