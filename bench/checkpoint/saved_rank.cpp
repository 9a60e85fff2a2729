// SPDX-License-Identifier: Apache-2.0
// The library that peers.py calls: this process's rank of a model with Adam's
// moments.
#include <exception>
#include <memory>
#include <string>

#include "apps/thinwire/bench/saved_training.h"
#include "thinwire/comm/registry.h"

namespace {

using thinwire::apps::bench::SavedTraining;

std::unique_ptr<thinwire::comm::Communicator> communicator;
std::unique_ptr<SavedTraining> training;
std::string problem;

template <class Body>
const char* attempt(const Body& body) {
  try {
    body();
    return nullptr;
  } catch (const std::exception& error) {
    problem = error.what();
    return problem.c_str();
  }
}

}  // namespace

// Each returns null, or an error message.
extern "C" {

const char* thinwire_begin(const char* folder, std::size_t elements,
                           std::size_t tensors) {
  return attempt([&] {
    if (!communicator) communicator = thinwire::comm::from_environment();
    training.reset();
    training = std::make_unique<SavedTraining>(
        *communicator,
        SavedTraining::Settings{
            .elements = elements, .tensors = tensors, .folder = folder});
  });
}

const char* thinwire_save() {
  return attempt([] {
    training->set_asynchronous(false);
    training->save();
  });
}
const char* thinwire_begin_save() {
  return attempt([] {
    training->set_asynchronous(true);
    training->save();
  });
}
const char* thinwire_wait() {
  return attempt([] { training->wait(); });
}
const char* thinwire_load() {
  return attempt([] { training->load(); });
}
const char* thinwire_remove() {
  return attempt([] { training->remove(); });
}
// Ends MPI before the process ends.
const char* thinwire_end() {
  return attempt([] {
    training.reset();
    communicator.reset();
  });
}
}
