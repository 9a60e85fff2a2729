# Warnings are errors in our own code only; flags that keep arithmetic exact are
# part of every target, because the same bits are promised everywhere.
add_library(thinwire_flags INTERFACE)
target_compile_options(
  thinwire_flags
  INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror
            -ffp-contract=off -fno-math-errno -fno-trapping-math)

# thinwire_library(core a.cpp b.cpp): the room's static library thinwire_core,
# known inside the build and to users as thinwire::core.
function(thinwire_library room)
  add_library(thinwire_${room} STATIC ${ARGN})
  add_library(thinwire::${room} ALIAS thinwire_${room})
  target_include_directories(
    thinwire_${room}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
           $<INSTALL_INTERFACE:include>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_features(thinwire_${room} PUBLIC cxx_std_20)
  if(NOT THINWIRE_SANITIZE)  # -O1, see options.cmake
    target_compile_options(thinwire_${room}
                           PRIVATE $<$<CONFIG:RelWithDebInfo>:-O3>)
  endif()
  target_link_libraries(thinwire_${room} PRIVATE $<BUILD_INTERFACE:thinwire_flags>)
  set_target_properties(thinwire_${room} PROPERTIES EXPORT_NAME ${room})
  set_property(GLOBAL APPEND PROPERTY THINWIRE_ROOMS thinwire_${room})
endfunction()
