package dev.phalanx.spark.internal;

import java.io.File;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CommonConfigurationKeysPublic;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkContext$;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.deploy.SparkHadoopUtil;
import org.apache.spark.api.python.PythonBroadcast;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.rdd.DeterministicLevel;
import org.apache.spark.rdd.RDD;
import org.apache.spark.resource.ResourceProfile;
import org.apache.spark.resource.ResourceProfileManager;
import org.apache.spark.resource.TaskResourceRequest;
import org.apache.spark.scheduler.Pool;
import org.apache.spark.scheduler.Schedulable;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.scheduler.TaskInfo;
import org.apache.spark.scheduler.TaskScheduler;
import org.apache.spark.scheduler.TaskSetManager;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.execution.python.UserDefinedPythonFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.storage.RDDBlockId;
import org.apache.spark.storage.StorageLevel;
import org.apache.spark.ui.SparkUI;
import org.apache.spark.ui.UIUtils;
import org.apache.spark.util.ShutdownHookManager;
import org.apache.spark.util.Utils;
import org.apache.spark.util.kvstore.KVStore;
import scala.Option;
import scala.collection.Iterator;
import scala.reflect.ClassTag$;
import scala.runtime.BoxedUnit;

/** What Spark keeps for its own packages. Scala hides it from others, Java doesn't. All uses of it are here. */
public final class SparkInternals {
  /** The property of a Spark job that says of which gang of tasks it is a seat. */
  public static final String GANG = "phalanx.gang";

  private SparkInternals() {}

  /** Whether the executor of this id is the driver itself: on a local master. */
  public static boolean isDriver(String executorId) {
    return SparkContext$.MODULE$.DRIVER_IDENTIFIER().equals(executorId);
  }

  /** Whether this JVM is the driver's. */
  public static boolean inDriver() {
    SparkEnv env = SparkEnv.get();
    return env == null || isDriver(env.executorId());
  }

  /** The properties of a task's Spark job, which its Python worker is told when it begins. */
  public static Properties propertiesOf(TaskContext task) {
    return task.getLocalProperties();
  }

  /** How this application reaches file systems. */
  public static Configuration hadoopConfiguration() {
    SparkEnv env = SparkEnv.get();
    return SparkHadoopUtil.get().newConfiguration(env == null ? new SparkConf() : env.conf());
  }

  /** Spark's local directory in this JVM, which ends with the application. */
  public static File localDir() {
    SparkEnv env = SparkEnv.get();
    return env == null
        ? new File(System.getProperty("java.io.tmpdir"))
        : new File(SparkVersions.localDir(env.conf()));
  }

  /** All of Spark's local directories in this JVM; none where Spark isn't running. */
  public static String[] localDirs() {
    SparkEnv env = SparkEnv.get();
    return env == null ? new String[0] : SparkVersions.configuredLocalDirs(env.conf());
  }

  /** Where this JVM's block manager keeps files, a folder below each of Spark's local directories. They go with it. */
  public static File[] blockManagerDirs() {
    return SparkEnv.get().blockManager().diskBlockManager().localDirs();
  }

  /** Leaves a block of the cached RDD with this id in this executor, which Spark then doesn't take away as idle. */
  public static void holdExecutor(int rdd, int partition) {
    SparkEnv.get()
        .blockManager()
        .putSingle(
            new RDDBlockId(rdd, partition),
            Boolean.TRUE,
            StorageLevel.MEMORY_AND_DISK(),
            true,
            ClassTag$.MODULE$.<Boolean>apply(Boolean.class));
  }

  /** Arrow's memory for one use, out of what Spark has for all; to be closed, once all of it is given back. */
  public static BufferAllocator newArrowAllocator(String name) {
    return ArrowUtils.rootAllocator().newChildAllocator(name, 0, Long.MAX_VALUE);
  }

  /** The host at which other executors reach this one, as Spark tells it to them. */
  public static String executorHost() {
    return SparkEnv.get().blockManager().blockManagerId().host();
  }

  /** This host's name, by Spark's rules. */
  public static String hostName() {
    return Utils.localHostName();
  }

  /** Deletes a folder when the JVM ends. */
  public static void deleteAtShutdown(File folder) {
    ShutdownHookManager.registerShutdownDeleteDir(folder);
  }

  /** Deletes a folder now. */
  public static void delete(File folder) {
    ShutdownHookManager.removeShutdownDeleteDir(folder);
    Utils.deleteRecursively(folder);
  }

  /** Runs `action` when the JVM is asked to end, before Spark's own context is stopped. */
  public static Object beforeShutdown(Runnable action) {
    return ShutdownHookManager.addShutdownHook(
        ShutdownHookManager.SPARK_CONTEXT_SHUTDOWN_PRIORITY() + 10,
        () -> {
          action.run();
          return BoxedUnit.UNIT;
        });
  }

  /** Whether the JVM is ending. */
  public static boolean inShutdown() {
    return ShutdownHookManager.inShutdown();
  }

  /** How long Hadoop waits for Spark's shutdown hooks, all together, before it interrupts them. */
  public static long shutdownTimeoutMillis() {
    long hadoops =
        new Configuration()
            .getTimeDuration(
                CommonConfigurationKeysPublic.SERVICE_SHUTDOWN_TIMEOUT,
                CommonConfigurationKeysPublic.SERVICE_SHUTDOWN_TIMEOUT_DEFAULT,
                TimeUnit.SECONDS,
                TimeUnit.MILLISECONDS);
    return new SparkConf().getTimeAsMs("spark.shutdown.timeout", hadoops + "ms");
  }

  /** The resource profile of this number, which Spark knows. */
  public static ResourceProfile profile(SparkContext context, int number) {
    return context.resourceProfileManager().resourceProfileFromId(number);
  }

  /** The number of the application's resource profile that is like this one, which it is told if it has none. */
  public static synchronized int knownProfile(SparkContext context, ResourceProfile made) {
    ResourceProfileManager profiles = context.resourceProfileManager();
    Option<ResourceProfile> like = profiles.getEquivalentProfile(made);
    if (like.isDefined()) {
      return like.get().id();
    }
    profiles.addResourceProfile(made);
    return made.id();
  }

  /** How many tasks of a resource profile the registered executors can run at once. */
  public static int taskSlots(SparkContext context, int profile) {
    return context.maxNumConcurrentTasks(profile(context, profile));
  }

  /** Whether a partition that is computed again has the same rows, perhaps in another order. */
  public static boolean isSettled(RDD<?> rows) {
    return rows.outputDeterministicLevel().id() != DeterministicLevel.INDETERMINATE().id();
  }

  /**
   * How the scheduler has the barrier stage of the jobs with a tag that ends so, or their gang of tasks of so many
   * {@code seats}: how many of its tasks run (-1 if it isn't submitted yet; of a gang of tasks 0 until all run), how
   * many slots of its profile there are, and how many of these are free. Spark Connect puts its own names before a
   * client's tag.
   *
   * <p>The scheduler itself is asked. What the status tracker knows is written at intervals, and may be 10 s old.
   */
  public static int[] stageLook(SparkContext context, String tag, int seats, int profile) {
    Pool pool = context.taskScheduler().rootPool();
    int slots = taskSlots(context, profile);
    int free = Math.max(0, slots - takenSlots(context, profile));
    // Behind the others: slots that its own tasks have taken by now are never told to be other jobs'.
    int running = -1;
    for (TaskSetManager stage : stagesOf(pool)) {
      // Earlier stages of a DataFrame have the same tag; a gang of tasks has none.
      if ((stage.isBarrier() || seats > 0) && hasTag(stage.taskSet().properties(), tag)) {
        running = Math.max(running, 0) + stage.runningTasks();
      }
    }
    return new int[] {running < seats ? Math.min(running, 0) : running, slots, free};
  }

  /**
   * Which tasks of the jobs with a tag that ends so run on executors that Spark decommissions, by their attempt ids.
   * Spark tells no plugin of it.
   */
  public static long[] leavingTasks(SparkContext context, String tag) {
    TaskScheduler scheduler = context.taskScheduler();
    List<Long> leaving = new ArrayList<>();
    synchronized (scheduler) { // who changes what is read here holds it
      for (TaskSetManager stage : stagesOf(scheduler.rootPool())) {
        if (hasTag(stage.taskSet().properties(), tag)) {
          for (Iterator<Object> running = stage.runningTasksSet().iterator(); running.hasNext(); ) {
            Object task = running.next();
            Option<TaskInfo> info = stage.taskInfos().get(task);
            if (info.isDefined()
                && scheduler.getExecutorDecommissionState(info.get().executorId()).isDefined()) {
              leaving.add((Long) task);
            }
          }
        }
      }
    }
    return leaving.stream().mapToLong(Long::longValue).toArray();
  }

  /** How many seats of a gang of tasks run; `gang` is what its jobs have for {@link #GANG}. */
  public static int seatsRunning(SparkContext context, String gang) {
    return stagesOf(context.taskScheduler().rootPool()).stream()
        .filter(stage -> gang.equals(property(stage.taskSet().properties(), GANG, "")))
        .mapToInt(TaskSetManager::runningTasks)
        .sum();
  }

  /** Whether Spark starts executors for tasks that wait. */
  public static boolean startsExecutors(SparkContext context) {
    return context.getConf().getBoolean("spark.dynamicAllocation.enabled", false) && !context.isLocal();
  }

  /** How many more tasks of a resource profile the registered executors could run now. */
  public static int freeSlots(SparkContext context, int profile) {
    return taskSlots(context, profile) - takenSlots(context, profile);
  }

  /** How many of a profile's slots are taken: a task of another takes the largest share that it has of a resource. */
  private static int takenSlots(SparkContext context, int profile) {
    ResourceProfile own = profile(context, profile);
    boolean sharesExecutors = !startsExecutors(context);
    double taken = 0;
    for (TaskSetManager stage : stagesOf(context.taskScheduler().rootPool())) {
      ResourceProfile other = profile(context, stage.taskSet().resourceProfileId());
      if (other.id() == profile) {
        taken += stage.runningTasks();
      } else if (sharesExecutors) {
        double cores = amount(other, ResourceProfile.CPUS()) / amount(own, ResourceProfile.CPUS());
        double gpus = amount(own, "gpu") > 0 ? amount(other, "gpu") / amount(own, "gpu") : 0;
        taken += stage.runningTasks() * Math.max(cores, gpus);
      }
    }
    return (int) Math.ceil(taken);
  }

  private static double amount(ResourceProfile profile, String resource) {
    TaskResourceRequest request = profile.taskResourcesJMap().get(resource);
    return request == null ? 0 : request.amount();
  }

  private static List<TaskSetManager> stagesOf(Pool pool) {
    List<TaskSetManager> stages = new ArrayList<>();
    for (Schedulable member : pool.schedulableQueue()) {
      if (member instanceof TaskSetManager stage) {
        stages.add(stage);
      } else if (member instanceof Pool below) {
        stages.addAll(stagesOf(below));
      }
    }
    return stages;
  }

  private static String property(Properties ofJob, String name, String otherwise) {
    return ofJob == null ? otherwise : ofJob.getProperty(name, otherwise);
  }

  private static boolean hasTag(Properties ofJob, String tag) {
    String tags = property(ofJob, "spark.job.tags", "");
    return Arrays.stream(tags.split(",")).anyMatch(each -> each.endsWith(tag));
  }

  /** Throws what Spark expects of a task that was killed, if this one was. */
  public static void throwIfKilled(TaskContext context) {
    context.killTaskIfInterrupted();
  }

  /** Why this task was killed; null if it wasn't. */
  public static String killReason(TaskContext context) {
    return context.getKillReason().isDefined() ? context.getKillReason().get() : null;
  }

  /** The PYTHONPATH of PySpark's own modules in this JVM's Spark. */
  public static String sparkPythonPath() {
    return PythonUtils.sparkPythonPath();
  }

  /** Adds a class to those that sessions of this application begin with (`spark.sql.extensions`). */
  public static void addExtension(SparkContext context, String name) {
    String there = context.conf().get("spark.sql.extensions", "");
    if (!Arrays.asList(there.split(",")).contains(name)) {
      context.conf().set("spark.sql.extensions", there.isBlank() ? name : there + "," + name);
    }
  }

  /** The broadcast that a function of Python's has, if it has one and no other; else null. */
  public static Broadcast<?> onlyBroadcast(PythonUDF function) {
    List<Broadcast<PythonBroadcast>> all = function.func().broadcastVars();
    boolean isEncrypted = SparkEnv.get().conf().getBoolean("spark.io.encryption.enabled", false);
    return all != null && all.size() == 1 && !isEncrypted ? all.get(0) : null;
  }

  /** A file of this driver's, for all executors. It has to stay as long as the broadcast. */
  public static Broadcast<?> broadcastFile(SparkContext context, String path) {
    PythonBroadcast file = new PythonBroadcast(path);
    return context.broadcast(file, ClassTag$.MODULE$.<PythonBroadcast>apply(PythonBroadcast.class));
  }

  /** A function of Python's without code: who plans it knows what it is by its type. */
  @SuppressWarnings("unchecked")
  public static UserDefinedPythonFunction pythonFunction(
      String name, Map<String, String> variables, String python, Broadcast<?> broadcast, DataType type) {
    List<Broadcast<PythonBroadcast>> all = List.of((Broadcast<PythonBroadcast>) broadcast);
    // 200: a function of pandas' series, which every Spark plans as one of Arrow's.
    return SparkVersions.pythonFunction(name, SparkVersions.pythonCode(variables, python, all), type, 200);
  }

  /** The program that Python workers of a function are. */
  public static String pythonOf(PythonUDF function) {
    return function.func().pythonExec();
  }

  /** The variables that Python workers of a function have. */
  public static Map<String, String> variablesOf(PythonUDF function) {
    return function.func().envVars();
  }

  /** Where the file of a broadcast of Python's is, on this machine. */
  public static String pythonBroadcastFile(Broadcast<?> broadcast) {
    return ((PythonBroadcast) broadcast.value()).path();
  }

  /** Posts an event to the listener bus of this JVM's application, where it has one; returns at once. */
  public static void post(SparkListenerEvent event) {
    Option<SparkContext> context = SparkContext$.MODULE$.getActive();
    if (context.isDefined() && !context.get().isStopped()) {
      context.get().listenerBus().post(event);
    }
  }

  /** The application's UI; null where it has none. */
  public static SparkUI ui(SparkContext context) {
    return context.ui().isDefined() ? context.ui().get() : null;
  }

  /** Where Spark keeps what its UI shows. */
  public static KVStore storeOf(SparkUI ui) {
    return ui.store().store();
  }

  /** A moment, in milliseconds since 1970, as Spark's UI shows it. */
  public static String formatDate(long millis) {
    return UIUtils.formatDate(millis);
  }

  /** Milliseconds, as Spark's UI shows them. */
  public static String formatDuration(long millis) {
    return UIUtils.formatDuration(millis);
  }
}
