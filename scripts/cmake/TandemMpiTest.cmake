# tandem_mpi_test(<name> NP <n> TARGET <executable> [ARGS ...] [TIMEOUT s]): the executable under
# mpirun with n ranks, as CTest test mpi.<name>.np<n>. TANDEM_MPI_TEST_ENVIRONMENT holds the settings that
# let more ranks than cores, root and containers run; launchers ignore those of others.
set(TANDEM_MPI_TEST_ENVIRONMENT
    # Open MPI 4
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1
    # Containers forbid the system call behind shared-memory single copy.
    OMPI_MCA_btl_vader_single_copy_mechanism=none
    # Open MPI 5
    PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
    PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
    OMP_NUM_THREADS=1)

function(tandem_mpi_test name)
  cmake_parse_arguments(ARG "" "NP;TARGET;TIMEOUT" "ARGS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set(test mpi.${name}.np${ARG_NP})
  add_test(NAME ${test} COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ARG_NP} ${MPIEXEC_PREFLAGS}
                                $<TARGET_FILE:${ARG_TARGET}> ${MPIEXEC_POSTFLAGS} ${ARG_ARGS})
  set_tests_properties(${test} PROPERTIES LABELS mpi TIMEOUT ${ARG_TIMEOUT} PROCESSORS ${ARG_NP}
                       ENVIRONMENT "${TANDEM_MPI_TEST_ENVIRONMENT}")
endfunction()
