# THIRD_PARTY_NOTICES: the licences of all libraries whose code is in what is
# installed. The list follows from what the installed targets link, and the texts
# are those that came with the libraries on this machine.

# thinwire_notice(target name files...): the text is the first of `files` that
# exists; a relative path begins where distributions keep licences.
function(thinwire_notice target name)
  string(MAKE_C_IDENTIFIER "THINWIRE_NOTICE_${name}" variable)
  string(TOUPPER ${variable} variable)
  set(found "")
  foreach(file IN LISTS ARGN)
    foreach(place IN ITEMS ${CMAKE_FIND_ROOT_PATH}/usr/share/doc
                           /usr/share/doc /usr/share/licenses
                           /usr/local/share/doc /usr/local/share/licenses)
      cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${place} OUTPUT_VARIABLE path)
      if(NOT found AND EXISTS ${path})
        set(found ${path})
      endif()
    endforeach()
  endforeach()
  if(NOT EXISTS "${${variable}}")
    set(${variable} "${found}" CACHE FILEPATH
        "The licence of ${name}, for THIRD_PARTY_NOTICES" FORCE)
  endif()
  set_property(GLOBAL PROPERTY THINWIRE_NOTICE_OF_${target} ${name} ${variable})
endfunction()

# thinwire_no_notice(targets...): none of their code is in what is installed.
function(thinwire_no_notice)
  foreach(target IN LISTS ARGN)
    set_property(GLOBAL PROPERTY THINWIRE_NOTICE_OF_${target} none)
  endforeach()
endfunction()

thinwire_notice(hwy::hwy Highway libhwy-dev/copyright highway/LICENSE)
thinwire_notice(fmt::fmt fmt libfmt-dev/copyright fmt/LICENSE fmt/LICENSE.rst)
thinwire_notice(nlohmann_json::nlohmann_json nlohmann-json
                nlohmann-json3-dev/copyright nlohmann-json/LICENSE.MIT
                json/LICENSE.MIT)
thinwire_notice(thinwire_xxhash xxHash libxxhash-dev/copyright xxhash/LICENSE)
thinwire_notice(CLI11::CLI11 CLI11 libcli11-dev/copyright cli11/LICENSE
                cli11/copyright)
# The notice of the hash map inside nanobind stands only in its header.
file(GLOB licences ${nanobind_DIR}/../../nanobind-*.dist-info/licenses/LICENSE)
foreach(target IN ITEMS nanobind-static nanobind-static-abi3)
  thinwire_notice(${target} nanobind ${licences})
endforeach()
thinwire_notice(robin_map robin_map
                ${nanobind_DIR}/../ext/robin_map/include/tsl/robin_map.h)
# Programs contain templates from the headers of LibTorch.
file(GLOB licences ${TORCH_INSTALL_PREFIX}/../torch-*.dist-info/licenses/LICENSE)
thinwire_notice(torch LibTorch ${licences} ${TORCH_INSTALL_PREFIX}/LICENSE)
# Linked dynamically, and their headers declare functions only.
thinwire_no_notice(MPI::MPI_C Threads::Threads)

# thinwire_linked(out targets...): names and variables, as thinwire_notice() has
# them, of all that the targets link.
function(thinwire_linked out)
  set(items ${ARGN})
  set(seen "")
  set(notices "")
  while(items)
    list(POP_FRONT items item)
    while(item MATCHES "^\\$<(BUILD_INTERFACE|LINK_ONLY):(.*)>$")
      set(item ${CMAKE_MATCH_2})
    endwhile()
    if(item IN_LIST seen OR item MATCHES "^::@")  # a directory, no library
      continue()
    endif()
    list(APPEND seen ${item})
    get_property(notice GLOBAL PROPERTY THINWIRE_NOTICE_OF_${item})
    if(notice)
      list(APPEND notices ${notice})
      continue()
    endif()
    set(is_imported TRUE)
    if(TARGET ${item})
      get_target_property(is_imported ${item} IMPORTED)
    endif()
    if(is_imported)
      message(FATAL_ERROR "cmake/notices.cmake does not know where the licence "
                          "of ${item} is")
    endif()
    foreach(property IN ITEMS ALIASED_TARGET LINK_LIBRARIES
                              INTERFACE_LINK_LIBRARIES)
      get_target_property(more ${item} ${property})
      if(more)
        list(APPEND items ${more})
      endif()
    endforeach()
  endwhile()
  set(${out} ${notices} PARENT_SCOPE)
endfunction()

# A missing text is an error in a wheel, which is made to be passed on.
set(severity STATUS)
if(THINWIRE_BUILD_PYTHON)
  set(severity FATAL_ERROR)
elseif(PROJECT_IS_TOP_LEVEL)
  set(severity WARNING)
endif()

get_property(targets GLOBAL PROPERTY THINWIRE_MODULES)
foreach(target IN ITEMS thinwire_program train_gpt _core)
  if(TARGET ${target})
    list(APPEND targets ${target})
  endif()
endforeach()
thinwire_linked(linked ${targets})
list(REMOVE_ITEM linked none)
if(nanobind IN_LIST linked)
  list(APPEND linked robin_map THINWIRE_NOTICE_ROBIN_MAP)
endif()

set(rule "==============================================================================")
set(notices "Thinwire contains code of the libraries below. Each notice is the one that came
with the library where Thinwire was built; some also name tests and tools of the
library, which are not contained. The Apache License 2.0 is in the file LICENSE.
")
while(linked)
  list(POP_FRONT linked name variable)
  if(${variable})
    file(READ "${${variable}}" text)
    if(name STREQUAL "robin_map")  # its first comment
      string(FIND "${text}" "*/" end)
      string(SUBSTRING "${text}" 0 ${end} text)
      string(REGEX REPLACE "\n \\*|^/\\*\\*" "\n" text "${text}")
    endif()
  else()
    set(text "Its notice was not found where Thinwire was built.\n")
    message(${severity} "The licence of ${name} was not found; "
                        "-D ${variable}=FILE names its text")
  endif()
  string(APPEND notices "\n${rule}\n${name}\n${rule}\n\n${text}")
endwhile()
file(CONFIGURE OUTPUT THIRD_PARTY_NOTICES CONTENT "@notices@" @ONLY)
set(thinwire_notices ${CMAKE_CURRENT_BINARY_DIR}/THIRD_PARTY_NOTICES)
