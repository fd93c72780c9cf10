package dev.phalanx.spark.ui

import java.util.{LinkedHashMap => JLinkedHashMap, Map => JMap}

import scala.util.Try
import scala.util.control.NonFatal
import scala.xml.{Node, NodeSeq, Unparsed}

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.{JsonNodeFactory, ObjectNode}

import dev.phalanx.spark.internal.Json
import dev.phalanx.spark.jni.Core

/** One run: `/phalanx/run/?id=RUN`, and `/phalanx/run/json?id=RUN`. The core draws it, as it does in a notebook;
  * links and the button are this UI's.
  *
  * TAB-6 (made-once): however many browsers ask, and however often, a run is drawn once for each snapshot.
  *
  * TAB-17 (without-core): where the core can't be had, as at a history server on another architecture, the page says
  * so in a sentence, and has the run's state and the cause of its failure.
  */
final private[spark] class RunPage(store: RunStore, questions: Option[StacksQuestions], draw: String => String)
    extends UiPage {
  import UiPage.Parameters

  private val MostRefreshSeconds = 3600
  private val MostMade = 8

  private val newest = new JLinkedHashMap[String, RunPage.Made](16, 0.75f, true) {
    override protected def removeEldestEntry(eldest: JMap.Entry[String, RunPage.Made]): Boolean = size > MostMade
  }

  def this(store: RunStore, questions: Option[StacksQuestions] = None) = this(store, questions, RunPage.byCore)

  override def title(parameters: Parameters): String =
    UiPage.parameter(parameters, "id").flatMap(store.run).fold("Phalanx")(run => s"Phalanx: ${RunPage.nameOf(run)}")

  override def html(parameters: Parameters): Seq[Node] =
    UiPage.parameter(parameters, "id").flatMap(store.run) match {
      case None =>
        <p>There is no such run: it never was, or there are {RunStore.MostRuns.toString} newer ones. <a href="../">All
        runs</a></p>
      case Some(run) =>
        val page = made(run)
        val refresh = refreshOf(parameters).filter(_ => !page.isOver)
        NodeSeq.fromSeq(head(page, refresh) ++ Unparsed(page.html)) ++ questions.map(stacks(page, _))
    }

  /** What the ranks' threads do, if somebody has asked, and a button that asks. It is made for each request. */
  private def stacks(page: RunPage.Made, questions: StacksQuestions): Node = {
    val id = page.run.run
    val runs = page.run.snapshot.nonEmpty && !page.isOver
    val found = questions.of(id)
    <div>
      {
      found match {
        case Some(_: StacksQuestions.Waiting) =>
          <div><meta http-equiv="refresh" content="1"/><p>The run's driver is asked for the stacks.</p></div>
        case Some(StacksQuestions.Unanswered) =>
          <p>The run's driver did not answer within {
            (StacksQuestions.PatienceMillis / 1000).toString
          } s: it may hang.</p>
        case Some(StacksQuestions.Answered(at, text)) =>
          <div><h4 style="margin-top:1em">{s"Stacks at ${Shown.date(at / 1e3)}"}</h4><pre class="phx-lines">{
            text
          }</pre></div>
        case None => NodeSeq.Empty
      }
    }
      {if (runs && !found.exists(_.isInstanceOf[StacksQuestions.Waiting])) button(id) else NodeSeq.Empty}
    </div>
  }

  private def button(run: String): Node =
    <form method="post" action="stacks/">
      <input type="hidden" name="id" value={run}/>
      <button class="btn btn-secondary btn-sm" type="submit">What do the ranks' threads do?</button>
    </form>

  private def refreshOf(parameters: Parameters): Option[Int] =
    UiPage
      .parameter(parameters, "refresh")
      .flatMap(text => Try(text.toInt).toOption)
      .filter(each => each > 0 && each <= MostRefreshSeconds)

  /** A run, which is drawn once for each snapshot, however many ask. */
  private def made(run: StoredRun): RunPage.Made = newest.synchronized {
    val before = newest.get(run.run)
    if (before != null && before.run.isSame(run)) before
    else {
      val snapshot = RunSnapshot.of(run)
      val page = RunPage.Made(run, snapshot.over || run.cut, drawn(run, snapshot))
      newest.put(run.run, page)
      page
    }
  }

  private def drawn(run: StoredRun, snapshot: RunSnapshot): String =
    try draw(RunSnapshot.withSparks(run).toString)
    catch {
      case problem @ (NonFatal(_) | _: LinkageError) =>
        <div>
          <p class="phx-text">{s"This run can't be drawn, so only its state is shown: ${problem.getMessage}"}</p>
          <p>{Shown.state(snapshot.state, run.cut)}</p>
          <p class="phx-text">{snapshot.cause}</p>
        </div>.toString
    }

  override def json(parameters: Parameters): JsonNode =
    RunPage.jsonOf(store, UiPage.parameter(parameters, "id").getOrElse(""))

  /** What Spark knows of the run, and links. */
  private def head(page: RunPage.Made, refresh: Option[Int]): NodeSeq = {
    val run = page.run
    val id = Shown.encoded(run.run)
    Shown.style ++
      refresh.fold(NodeSeq.Empty)(seconds => <meta http-equiv="refresh" content={seconds.toString}/>) ++
      <p>
        Started {Shown.date(run.started / 1e3)}{
        if (run.stages.isEmpty) NodeSeq.Empty
        else <span> · Spark's stages {Shown.stages(run, "../../")}</span>
      } · <a href="../../executors/">Executors</a> · <a href="../">All runs</a> · <a href={s"json?id=$id"}>JSON</a>{
        if (page.isOver) NodeSeq.Empty
        else if (refresh.isEmpty) <span> · <a href={s"?id=$id&refresh=5"}>Reload every 5 s</a></span>
        else <span> · <a href={s"?id=$id"}>Stop reloading</a></span>
      }
      </p>
  }
}

private[spark] object RunPage {

  /** A run as it was drawn, and whether it can't change any more. */
  final private case class Made(run: StoredRun, isOver: Boolean, html: String)

  def nameOf(run: StoredRun): String =
    if (run.snapshot.isEmpty) "" else Json.read(run.snapshot).path("name").asText("")

  private def byCore(snapshot: String): String = Core(_.runPage(snapshot))

  /** What is known of a run, as JSON; `{"version": 1}` where nothing is. */
  def jsonOf(store: RunStore, id: String): JsonNode =
    store.run(id).fold(JsonNodeFactory.instance.objectNode().put("version", 1))(jsonOf)

  def jsonOf(run: StoredRun): ObjectNode = {
    val json = JsonNodeFactory.instance.objectNode().put("version", 1).put("run", run.run).put("cut", run.cut)
    val stages = json.putArray("stages")
    run.stages.forEach(id => stages.add(id): Unit)
    json.set[JsonNode]("snapshot", if (run.snapshot.isEmpty) null else Json.read(run.snapshot)): Unit
    json
  }
}
