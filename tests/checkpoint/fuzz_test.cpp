// SPDX-License-Identifier: Apache-2.0
// fuzz/safetensors_fuzz.cpp and fuzz/manifest_fuzz.cpp over what we write and
// over mutations of it, and a directory whose files are altered although their
// hashes fit. The same every time; something wrong ends the process.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/format/manifests.h"
#include "checkpoint/read/verified_file.h"
#include "checkpoint/tiny_checkpoint.h"
#include "support/folder.h"
#include "support/long.h"
#include "support/mutator.h"
#include "thinwire/core/error.h"

extern "C" int safetensors_fuzz(const std::uint8_t* data, std::size_t size);
extern "C" int manifest_fuzz(const std::uint8_t* data, std::size_t size);

namespace thinwire::checkpoint::fuzz_test {
namespace {

using test::read_file;
using thinwire::test::Folder;

constexpr int kMutations = 20'000;

const std::uint8_t* bytes_of(const std::string& text) {
  return reinterpret_cast<const std::uint8_t*>(text.data());
}

// The eight bytes in front of a header of that size.
std::string length_of(std::size_t header) {
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i)
    length[i] = static_cast<char>(header >> 8 * i & 255);
  return length;
}

// Without the padding, which mutations would waste themselves on.
std::string short_file(const std::string& file) {
  const std::size_t end = file.find_last_not_of(' ', 4095) + 1;
  return length_of(end - 8) + file.substr(8, end - 8) + file.substr(4096);
}

TEST(Fuzz, HeadersAreReadOrRefused) {
  const Folder directory;
  test::write_tiny(directory.path());
  std::vector<std::string> corpus;
  for (const char* name :
       {"model.safetensors", "state-00001-of-00002.safetensors"}) {
    corpus.push_back(read_file(directory.in(name)));
    corpus.push_back(short_file(corpus.back()));
  }
  for (const std::string& file : corpus)
    safetensors_fuzz(bytes_of(file), file.size());
  thinwire::test::Mutator mutate(1);
  for (int i = 0; i < kMutations; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::string& file = corpus[at % corpus.size()];
    // Mostly the header as a text whose length fits, at times the bytes.
    std::string other = mutate(i % 8 == 0 ? file : file.substr(8),
                               corpus[at / 7 % corpus.size()]);
    if (i % 8 != 0)  // npos + 1 is 0
      other = length_of(other.rfind('}') + 1) + other;
    safetensors_fuzz(bytes_of(other), other.size());
  }
}

TEST(Fuzz, ManifestsAreReadOrRefused) {
  const Folder directory;
  test::write_tiny(directory.path());
  const std::vector<std::string> corpus{
      write_manifest(test::full_manifest()), write_manifest({}),
      read_file(directory.in("manifest.json"))};
  for (const std::string& text : corpus)
    manifest_fuzz(bytes_of(text), text.size());
  thinwire::test::Mutator mutate(2);
  for (int i = 0; i < kMutations; ++i) {
    const auto at = static_cast<std::size_t>(i);
    // Half of them without the end, so that more than a hash is cut off.
    std::string text = corpus[at % corpus.size()];
    if (i % 2 == 0) text.resize(text.rfind("\"manifest_xxh3\""));
    const std::string other = mutate(text, corpus[at / 7 % corpus.size()]);
    manifest_fuzz(bytes_of(other), other.size());
  }
}

TEST(Fuzz, DirectoriesWhoseHashesFitAreReadOrRefused) {
  const Folder directory;
  test::write_tiny(directory.path());
  FileSystem& files = posix_file_system();
  const std::string state = "state-00001-of-00002.safetensors";
  const std::string good = read_file(directory.in(state));
  const std::string text = read_file(directory.in("manifest.json"));
  thinwire::test::Mutator mutate(3);
  const int mutations = thinwire::test::is_long() ? kMutations : 500;
  for (int i = 0; i < mutations; ++i) {
    Manifest manifest = read_manifest(files, directory.path());
    // Mostly the data, which begin with the index tensors.
    const std::string file =
        i % 4 == 0 ? mutate(good, good)
                   : good.substr(0, 4096) + mutate(good.substr(4096), good);
    test::write_file(directory.in(state), file);
    SavedFile saved = test::saved_file(state, file);
    saved.tensors = manifest.files[1].tensors;
    manifest.files[1] = saved;
    std::string other = write_manifest(manifest);
    if (i % 3 == 0) {
      other = mutate(other, other);
      other.resize(std::min(other.rfind("\"manifest_xxh3\""), other.size()));
      other += manifest_end(other);
    }
    test::write_file(directory.in("manifest.json"), other);
    try {
      test::read_all(directory.path());
    } catch (const Error&) {
    }
    test::write_file(directory.in("manifest.json"), text);
  }
}

}  // namespace
}  // namespace thinwire::checkpoint::fuzz_test
